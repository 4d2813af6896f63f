#include <cstring>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::tstring;

class BatchSizesToStringOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& sizes = context->input(0);
    Tensor* text;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &text));
    const auto* bytes = static_cast<const char*>(sizes.data());
    text->scalar<tstring>()().assign(bytes, sizes.NumElements() * sizeof(int64_t));
  }
};

class BatchSizesFromStringOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& text = context->input(0);
    constexpr size_t kBytesPerFeature = 2 * sizeof(int64_t);
    OP_REQUIRES(context, TensorShapeUtils::IsScalar(text.shape()),
                absl::InvalidArgumentError("text: expected the scalar of BatchSizesToString, got "
                                           "shape " +
                                           text.shape().DebugString()));
    const tstring& bytes = text.scalar<tstring>()();
    OP_REQUIRES(
        context, bytes.size() % kBytesPerFeature == 0,
        absl::InvalidArgumentError("text: expected " + std::to_string(kBytesPerFeature) +
                                   " bytes for each feature, got " + std::to_string(bytes.size())));
    Tensor* sizes;
    const auto num_features = static_cast<int64_t>(bytes.size() / kBytesPerFeature);
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({num_features, 2}), &sizes));
    std::memcpy(sizes->data(), bytes.data(), bytes.size());
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>BatchSizesToString").Device(tensorflow::DEVICE_CPU),
                        Guarded<BatchSizesToStringOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>BatchSizesFromString").Device(tensorflow::DEVICE_CPU),
                        Guarded<BatchSizesFromStringOp>);
#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>BatchSizesToString")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("sizes")
                            .HostMemory("text"),
                        Guarded<BatchSizesToStringOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>BatchSizesFromString")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("text")
                            .HostMemory("sizes"),
                        Guarded<BatchSizesFromStringOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
