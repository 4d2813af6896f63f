// Ops on what a keyed table does to keep its budget, and on what it evicts by.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/table_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

absl::Status InvalidUnlessOk(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.message());
}

class BudgetCountsOp : public TableOp {
  using TableOp::TableOp;

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const BudgetCounts counts = table->budget_counts();
    const int64_t values[] = {counts.max_keys, counts.num_evicted, counts.num_without_place,
                              counts.num_missed};
    for (int i = 0; i < 4; ++i) {
      Tensor* output;
      TF_RETURN_IF_ERROR(context->allocate_output(i, TensorShape({}), &output));
      output->scalar<int64_t>()() = values[i];
    }
    return absl::OkStatus();
  }
};

class TakeEvictedOp : public TableOp {
 public:
  explicit TakeEvictedOp(OpKernelConstruction* context) : TableOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

 private:
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const TableOptions& options = table->options();
    if (options.dtype != ToCore(dtype_) || options.dim != dim_) {
      return absl::InvalidArgumentError("table '" + options.name + "': expected its dtype and dim");
    }
    KeyedRows rows;
    table->TakeEvicted(&rows);
    TF_RETURN_IF_ERROR(Output(context, 0, rows.keys));
    TF_RETURN_IF_ERROR(Output(context, 2, rows.versions));
    TF_RETURN_IF_ERROR(Output(context, 3, rows.counts));
    const int64_t row_bytes = dim_ * SizeOf(options.dtype);
    const auto num_rows = static_cast<int64_t>(rows.values.size()) / row_bytes;
    Tensor* values;
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_rows, dim_}), &values));
    if (num_rows > 0) std::memcpy(values->data(), rows.values.data(), num_rows * row_bytes);
    return absl::OkStatus();
  }

  static absl::Status Output(OpKernelContext* context, int index,
                             const std::vector<int64_t>& values) {
    Tensor* output;
    const TensorShape shape({static_cast<int64_t>(values.size())});
    TF_RETURN_IF_ERROR(context->allocate_output(index, shape, &output));
    std::copy(values.begin(), values.end(), output->flat<int64_t>().data());
    return absl::OkStatus();
  }

  tensorflow::DataType dtype_;
  int32_t dim_;
};

class SetScoresOp : public TableOp {
  using TableOp::TableOp;

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const Tensor &keys = context->input(1), &scores = context->input(2);
    if (keys.shape() != scores.shape()) {
      return absl::InvalidArgumentError(
          "table '" + table->options().name + "': expected scores of the shape of keys, " +
          keys.shape().DebugString() + ", got " + scores.shape().DebugString());
    }
    return InvalidUnlessOk(table->SetScores(keys.flat<int64_t>().data(), keys.NumElements(),
                                            scores.flat<float>().data()));
  }
};

class SetTimeOp : public TableOp {
  using TableOp::TableOp;

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    int64_t minute;
    TF_RETURN_IF_ERROR(ReadScalar(context, "minute", &minute));
    return InvalidUnlessOk(table->SetTime(minute));
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>BudgetCounts").Device(tensorflow::DEVICE_CPU),
                        Guarded<BudgetCountsOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>TakeEvicted").Device(tensorflow::DEVICE_CPU),
                        Guarded<TakeEvictedOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SetScores").Device(tensorflow::DEVICE_CPU),
                        Guarded<SetScoresOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SetTime").Device(tensorflow::DEVICE_CPU),
                        Guarded<SetTimeOp>);

#if GOOGLE_CUDA
// For tables on the GPU too, all of it is in host memory.
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>BudgetCounts")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("max_keys")
                            .HostMemory("evicted")
                            .HostMemory("without_place")
                            .HostMemory("missed"),
                        Guarded<BudgetCountsOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>TakeEvicted")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("values")
                            .HostMemory("versions")
                            .HostMemory("frequencies"),
                        Guarded<TakeEvictedOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SetScores")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("scores"),
                        Guarded<SetScoresOp>);
REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>SetTime").Device(tensorflow::DEVICE_GPU).HostMemory("minute"),
    Guarded<SetTimeOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
