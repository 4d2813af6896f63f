#include "fused/group_lookup.h"

#include <vector>

#include "core/trace.h"
#include "fused/host_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/gpu_faults.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/large_page_variables.h"
#include "tf/support/located_batch.h"
#include "tf/support/tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// What both devices do before and after the core's function.
class GroupLookupOp : public OpKernel {
 public:
  explicit GroupLookupOp(OpKernelConstruction* context) : OpKernel(context), attrs_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("keyed", &keyed_));
    OP_REQUIRES(
        context, num_outputs() == attrs_.NumOutputs(),
        absl::InvalidArgumentError("num_outputs: expected " + std::to_string(attrs_.NumOutputs())));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("lookup");
    Tables tables;
    std::vector<Feature> features;
    BatchInput batch;
    Group group;
    OP_REQUIRES_OK(context, tables.Read(context, attrs_, keyed_));
    BeforeReads(tables);
    OP_REQUIRES_OK(context,
                   attrs_.MakeFeatures(context, BatchCheck::kFeatureSplits, &batch, &features));
    OP_REQUIRES_OK(context, attrs_.AllocateOutputs(context, &features));
    group.batch = AsRead(batch.view);
    group.tables = tables.get().data();
    group.num_tables = static_cast<int64_t>(tables.get().size());
    group.features = features.data();
    group.num_features = static_cast<int64_t>(features.size());
    group.dtype = attrs_.core_dtype;
    group.invalid_ids = attrs_.invalid_ids;
    OP_REQUIRES_OK(context, Run(context, group, tables.get(), batch.extents));
  }

 protected:
  virtual void BeforeReads(const Tables& /*tables*/) {}
  virtual absl::Status Run(OpKernelContext* context, const Group& group,
                           const std::vector<Table>& tables, const BatchExtents& batch) = 0;

  const GroupAttrs attrs_;

 private:
  std::vector<int32_t> keyed_;
};

class GroupLookupCpuOp : public GroupLookupOp {
 public:
  explicit GroupLookupCpuOp(OpKernelConstruction* context)
      : GroupLookupOp(context), large_pages_(attrs_.dims.size()) {}

 private:
  void BeforeReads(const Tables& tables) override {
    for (size_t t = 0; t < tables.get().size(); ++t) {
      const Table& table = tables.get()[t];
      const int64_t bytes = table.num_rows * table.dim * SizeOf(attrs_.core_dtype);
      if (tables.is_variable(t)) large_pages_.Move(t, table.rows, bytes);
    }
  }

  absl::Status Run(OpKernelContext* context, const Group& group, const std::vector<Table>& tables,
                   const BatchExtents& batch) override {
    return attrs_.ToStatus(GroupLookupCpu(group, ThreadsOf(context)), tables, &batch);
  }

  const LargePageVariables large_pages_;
};

#if GOOGLE_CUDA
class GroupLookupGpuOp : public GroupLookupOp {
  using GroupLookupOp::GroupLookupOp;

  absl::Status Run(OpKernelContext* context, const Group& group, const std::vector<Table>& tables,
                   const BatchExtents& batch) override {
    TF_RETURN_IF_ERROR(RaiseGpuFaults());
    Tensor scratch;
    absl::Status status = AllocateScratch(context, GroupLookupScratchBytes(group), &scratch);
    if (absl::IsResourceExhausted(status) && FetchesHostRows(group)) {
      return LookUpInPlace(context, group, tables, batch);
    }
    TF_RETURN_IF_ERROR(status);
    Fault* fault = slot_.Arm([attrs = attrs_, tables,
                              batch](const Fault& f) { return attrs.ToStatus(f, tables, &batch); },
                             &status);
    TF_RETURN_IF_ERROR(status);
    return ToStatus(GroupLookupCuda(group, scratch.data(), fault, StreamOf(context)),
                    "GroupLookup");
  }

  // Where there is no memory to fetch rows of the host into, the kernel reads them over the bus.
  absl::Status LookUpInPlace(OpKernelContext* context, Group group, std::vector<Table> tables,
                             const BatchExtents& batch) {
    for (Table& table : tables) table.first_host_row = -1;
    group.tables = tables.data();
    return Run(context, group, tables, batch);
  }

  GpuFaultSlot slot_;
};
#endif  // GOOGLE_CUDA

REGISTER_FOR_ROW_TYPES(Name("GroupEmbedding>GroupLookup").Device(tensorflow::DEVICE_CPU),
                       Guarded<GroupLookupCpuOp>);

#if GOOGLE_CUDA
REGISTER_FOR_ROW_TYPES(
    Name("GroupEmbedding>GroupLookup").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"),
    Guarded<GroupLookupGpuOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
