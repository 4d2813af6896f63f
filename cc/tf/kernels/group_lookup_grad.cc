#include "fused/group_lookup_grad.h"

#include <vector>

#include "core/trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/check_rows.h"
#include "tf/support/device.h"
#include "tf/support/gpu_faults.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/located_batch.h"
#include "tf/support/shared_buffer.h"
#include "tf/support/tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Inputs: tables, batch, sizes, gradients, keyed tables. Outputs: indices and values of each table,
// weight_grad.
class GroupLookupGradOp : public OpKernel {
 public:
  explicit GroupLookupGradOp(OpKernelConstruction* context) : OpKernel(context), attrs_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("grad_features", &grad_features_));
    OP_REQUIRES_OK(context, context->GetAttr("keyed", &keyed_));
    OP_REQUIRES(context, num_outputs() == 2 * static_cast<int>(attrs_.dims.size()) + 1,
                absl::InvalidArgumentError("num_tables: expected as many as dims"));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("gradients");
    Tables tables;
    std::vector<Feature> features;
    BatchInput batch;
    Group group;
    const int num_tables = static_cast<int>(attrs_.dims.size());
    OP_REQUIRES_OK(context, tables.Read(context, attrs_, keyed_));
    const Tensor* located;
    OP_REQUIRES_OK(context, context->input("batch", &located));
    OP_REQUIRES_OK(context, CheckLocatedForTraining(*located, attrs_, keyed_));
    OP_REQUIRES_OK(context,
                   attrs_.MakeFeatures(context, BatchCheck::kRowSplits, &batch, &features));
    group.batch = batch.view;
    OP_REQUIRES_OK(context, CheckSortable(group.batch));
    OP_REQUIRES_OK(context, attrs_.ReadGradients(context, grad_features_, &features));
    group.tables = tables.get().data();
    group.num_tables = num_tables;
    group.features = features.data();
    group.num_features = static_cast<int64_t>(features.size());
    group.dtype = attrs_.core_dtype;
    group.invalid_ids = attrs_.invalid_ids;
    Tensor* weight_grad;
    const int64_t num_weights = attrs_.weighted ? group.batch.num_ids : 0;
    OP_REQUIRES_OK(context, context->allocate_output(2 * num_tables, TensorShape({num_weights}),
                                                     &weight_grad));
    Group read = group;  // what weights were multiplied with
    read.batch = AsRead(group.batch);
    OP_REQUIRES_OK(context, Run(context, group, read, weight_grad->flat<float>().data()));
    for (const int32_t t : keyed_) {
      Tensor* indices = context->mutable_output(t);
      *indices = HoldBatch(*indices, *located);
    }
  }

 protected:
  // read: the group as it was looked up.
  virtual absl::Status Run(OpKernelContext* context, const Group& group, const Group& read,
                           float* weight_grad) = 0;

  // num_unique: [num_tables + 1], the first unique row of each table, in host memory.
  absl::Status AllocateGrads(OpKernelContext* context, const int64_t* num_unique,
                             std::vector<TableGrad>* grads) const {
    const int num_tables = static_cast<int>(attrs_.dims.size());
    std::vector<TensorShape> index_shapes, value_shapes;
    for (int t = 0; t < num_tables; ++t) {
      const int64_t rows = num_unique[t + 1] - num_unique[t];
      index_shapes.push_back(TensorShape({rows}));
      value_shapes.push_back(TensorShape({rows, attrs_.dims[t]}));
    }
    std::vector<void*> indices, values;
    TF_RETURN_IF_ERROR(
        AllocateOutputsTogether(context, 0, tensorflow::DT_INT64, index_shapes, &indices));
    TF_RETURN_IF_ERROR(
        AllocateOutputsTogether(context, num_tables, attrs_.dtype, value_shapes, &values));
    for (int t = 0; t < num_tables; ++t) {
      grads->push_back({static_cast<int64_t*>(indices[t]), values[t]});
    }
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;

 private:
  std::vector<int32_t> grad_features_, keyed_;
};

class GroupLookupGradCpuOp : public GroupLookupGradOp {
  using GroupLookupGradOp::GroupLookupGradOp;

  absl::Status Run(OpKernelContext* context, const Group& group, const Group& read,
                   float* weight_grad) override {
    TF_RETURN_IF_ERROR(CheckRows(group));
    Tensor workspace;
    TF_RETURN_IF_ERROR(AllocateScratch(context, RowSorter::WorkspaceBytes(group), &workspace));
    const ParallelFor threads = ThreadsOf(context);
    RowSorter sorter(group, workspace.data(), threads);
    SortRowsCpu(&sorter, threads);
    std::vector<TableGrad> grads;
    TF_RETURN_IF_ERROR(AllocateGrads(context, sorter.SumRows().data(), &grads));
    ReduceRowsCpu(sorter, grads.data(), threads);
    if (attrs_.weighted) WeightGradCpu(read, weight_grad, threads);
    return absl::OkStatus();
  }
};

#if GOOGLE_CUDA
class GroupLookupGradGpuOp : public GroupLookupGradOp {
  using GroupLookupGradOp::GroupLookupGradOp;

  absl::Status Run(OpKernelContext* context, const Group& group, const Group& read,
                   float* weight_grad) override {
    const cudaStream_t stream = StreamOf(context);
    Tensor workspace, scratch, num_unique;
    TF_RETURN_IF_ERROR(AllocateScratch(context, SortRowsWorkspaceBytesCuda(group), &workspace));
    SortedRows sorted;
    TF_RETURN_IF_ERROR(
        ToStatus(SortRowsCuda(group, workspace.data(), &sorted, stream), "SortRows"));
    if (attrs_.weighted) {
      TF_RETURN_IF_ERROR(AllocateScratch(context, WeightGradScratchBytesCuda(read), &scratch));
      TF_RETURN_IF_ERROR(
          ToStatus(WeightGradCuda(read, weight_grad, scratch.data(), stream), "WeightGrad"));
    }
    TF_RETURN_IF_ERROR(ToHost(context, sorted.num_unique, group.num_tables + 1, &num_unique));
    TF_RETURN_IF_ERROR(RaiseGpuFaults());
    const int64_t* first = num_unique.flat<int64_t>().data();
    std::vector<TableGrad> grads;
    TF_RETURN_IF_ERROR(AllocateGrads(context, first, &grads));
    TF_RETURN_IF_ERROR(AllocateScratch(context, ReduceRowsScratchBytesCuda(group), &scratch));
    return ToStatus(ReduceRowsCuda(group, sorted, grads.data(), scratch.data(), stream),
                    "ReduceRows");
  }

  // The one synchronisation: an IndexedSlices has a size, and only the GPU knows it.
  absl::Status ToHost(OpKernelContext* context, const int64_t* from, int64_t count,
                      Tensor* to) const {
    tensorflow::AllocatorAttributes pinned;
    pinned.set_on_host(true);
    pinned.set_gpu_compatible(true);
    TF_RETURN_IF_ERROR(
        context->allocate_temp(tensorflow::DT_INT64, TensorShape({count}), to, pinned));
    const cudaStream_t stream = StreamOf(context);
    TF_RETURN_IF_ERROR(ToStatus(
        cudaMemcpyAsync(to->data(), from, count * sizeof(int64_t), cudaMemcpyDeviceToHost, stream),
        "copying the numbers of unique rows"));
    return ToStatus(cudaStreamSynchronize(stream), "GroupLookupGrad");
  }
};
#endif  // GOOGLE_CUDA

REGISTER_FOR_ROW_TYPES(Name("GroupEmbedding>GroupLookupGrad").Device(tensorflow::DEVICE_CPU),
                       Guarded<GroupLookupGradCpuOp>);

#if GOOGLE_CUDA
REGISTER_FOR_ROW_TYPES(
    Name("GroupEmbedding>GroupLookupGrad").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"),
    Guarded<GroupLookupGradGpuOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
