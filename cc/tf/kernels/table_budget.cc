// Ops on what a keyed table does to keep its budget, and on what it evicts by.
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/guarded_op.h"
#include "tf/support/keyed_rows_op.h"
#include "tf/support/table_op.h"

namespace group_embedding {
namespace {

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

class TakeEvictedOp : public KeyedRowsOp {
  using KeyedRowsOp::KeyedRowsOp;

  absl::Status Read(EmbeddingTable* table, KeyedRows* rows) override {
    table->TakeEvicted(rows);
    return absl::OkStatus();
  }
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
