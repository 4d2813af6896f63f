#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tf/support/handle_pack.h"

namespace group_embedding {
namespace {

using ::tensorflow::ResourceHandle;

class PackHandlesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    std::vector<ResourceHandle> handles;
    for (int i = 0; i < num_inputs(); ++i) {
      const tensorflow::Tensor& handle = context->input(i);
      OP_REQUIRES(context, handle.dims() == 0,
                  absl::InvalidArgumentError("handles: expected scalars, got shape " +
                                             handle.shape().DebugString()));
      handles.push_back(handle.scalar<ResourceHandle>()());
    }
    tensorflow::Tensor* packed;
    OP_REQUIRES_OK(context, context->allocate_output(0, {1}, &packed));
    packed->flat<ResourceHandle>()(0) = ResourceHandle::MakeRefCountingHandle(
        new HandlePack(std::move(handles)), context->device()->attributes().name());
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>PackHandles").Device(tensorflow::DEVICE_CPU),
                        PackHandlesOp);
#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>PackHandles")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handles")
                            .HostMemory("packed"),
                        PackHandlesOp);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
