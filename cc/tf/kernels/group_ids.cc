#include "grouping/group_ids.h"

#include <vector>

#include "core/trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/feature_reader.h"
#include "tf/support/gpu_faults.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

absl::Status ReadFeatures(OpKernelContext* context, const FeatureReader& reader,
                          std::vector<FeatureIds>* features) {
  FeatureTensors tensors;
  const auto read = [&](const char* name, FeatureTensors::List* list) {
    OpInputList inputs;
    TF_RETURN_IF_ERROR(context->input_list(name, &inputs));
    for (const Tensor& input : inputs) list->push_back(&input);
    return absl::OkStatus();
  };
  TF_RETURN_IF_ERROR(read("values", &tensors.values));
  TF_RETURN_IF_ERROR(read("partitions", &tensors.partitions));
  TF_RETURN_IF_ERROR(read("dense_shapes", &tensors.dense_shapes));
  TF_RETURN_IF_ERROR(read("weights", &tensors.weights));
  TF_RETURN_IF_ERROR(read("weight_partitions", &tensors.weight_partitions));
  return reader.Read(tensors, features);
}

class GroupIdsCpuOp : public OpKernel {
 public:
  explicit GroupIdsCpuOp(OpKernelConstruction* context) : OpKernel(context), reader_(context) {}

  void Compute(OpKernelContext* context) override {
    const Stage stage("grouping");
    std::vector<FeatureIds> features;
    Tensor* batch;
    OP_REQUIRES_OK(context, ReadFeatures(context, reader_, &features));
    OP_REQUIRES_OK(context, reader_.AllocateOutputs(context, features, &batch));
    const Fault fault =
        GroupIdsCpu(features.data(), static_cast<int64_t>(features.size()), reader_.weighted(),
                    batch->flat<float>().data(), ThreadsOf(context));
    OP_REQUIRES(context, fault.kind == FaultKind::kNone, reader_.ToStatus(fault, features));
  }

 private:
  const FeatureReader reader_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>GroupIds").Device(tensorflow::DEVICE_CPU),
                        Guarded<GroupIdsCpuOp>);

#if GOOGLE_CUDA
class GroupIdsGpuOp : public OpKernel {
 public:
  explicit GroupIdsGpuOp(OpKernelConstruction* context) : OpKernel(context), reader_(context) {}

  void Compute(OpKernelContext* context) override {
    const Stage stage("grouping");
    OP_REQUIRES_OK(context, RaiseGpuFaults());
    std::vector<FeatureIds> features;
    Tensor* batch;
    OP_REQUIRES_OK(context, ReadFeatures(context, reader_, &features));
    OP_REQUIRES_OK(context, reader_.AllocateOutputs(context, features, &batch));
    const int64_t num_features = static_cast<int64_t>(features.size());
    Tensor scratch;
    OP_REQUIRES_OK(context, AllocateScratch(context, GroupIdsScratchBytes(num_features), &scratch));
    absl::Status status;
    Fault* fault = slot_.Arm(
        [reader = reader_, features](const Fault& f) { return reader.ToStatus(f, features); },
        &status);
    OP_REQUIRES_OK(context, status);
    OP_REQUIRES_OK(context, ToStatus(GroupIdsCuda(features.data(), num_features, reader_.weighted(),
                                                  batch->flat<float>().data(), scratch.data(),
                                                  fault, StreamOf(context)),
                                     "GroupIds"));
  }

 private:
  const FeatureReader reader_;
  GpuFaultSlot slot_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>GroupIds")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("dense_shapes")
                            .HostMemory("sizes"),
                        Guarded<GroupIdsGpuOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
