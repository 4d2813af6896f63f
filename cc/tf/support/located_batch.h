// A located batch: a tensor of row numbers whose buffer keeps these rows from being given to other
// keys, as long as the tensor exists.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "table/embedding_table.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/group_attrs.h"

namespace group_embedding {

// One table's part: its batch has begun, and ends with the lease.
class BatchLease {
 public:
  explicit BatchLease(std::shared_ptr<EmbeddingTable> table)
      : table_(std::move(table)), batch_(table_->BeginBatch()) {}
  ~BatchLease() { table_->EndBatch(batch_); }
  BatchLease(const BatchLease&) = delete;
  BatchLease& operator=(const BatchLease&) = delete;

  EmbeddingTable* table() const { return table_.get(); }
  int64_t batch() const { return batch_; }

 private:
  const std::shared_ptr<EmbeddingTable> table_;
  const int64_t batch_;
};

// Memory that somebody else allocated. With a derived class goes what lives as long as it is used.
class BorrowedBuffer : public tensorflow::TensorBuffer {
 public:
  explicit BorrowedBuffer(tensorflow::Tensor memory)
      : TensorBuffer(memory.data()), memory_(std::move(memory)) {}

  size_t size() const override { return memory_.TotalBytes(); }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}

 private:
  const tensorflow::Tensor memory_;
};

// On a GPU the lease may end before kernels have used the rows: whoever gets them next is enqueued
// behind those.
class LocatedBuffer : public BorrowedBuffer {
 public:
  // reads: int64 [ids] the rows that a lookup reads, where they are not those that are trained: a
  // filter admits keys whose rows are read from the next step on. Else empty.
  LocatedBuffer(tensorflow::Tensor memory, std::vector<std::unique_ptr<BatchLease>> leases,
                bool training, tensorflow::Tensor reads = {})
      : BorrowedBuffer(std::move(memory)),
        leases_(std::move(leases)),
        training_(training),
        reads_(std::move(reads)) {}

  bool training() const { return training_; }
  const tensorflow::Tensor& reads() const { return reads_; }

 private:
  const std::vector<std::unique_ptr<BatchLease>> leases_;
  const bool training_;
  const tensorflow::Tensor reads_;
};

// Null: the batch was not located.
inline const LocatedBuffer* LocatedBufferOf(const tensorflow::Tensor& batch) {
  return dynamic_cast<const LocatedBuffer*>(tensorflow::DMAHelper::buffer(&batch));
}

// Completes `view` by the rows that a lookup of the batch reads.
inline absl::Status FindReads(const tensorflow::Tensor& batch, Batch* view) {
  const LocatedBuffer* located = LocatedBufferOf(batch);
  if (located == nullptr || located->reads().NumElements() == 0) return absl::OkStatus();
  if (located->reads().NumElements() != view->num_ids) {
    return absl::InvalidArgumentError("sizes: expected those that the batch was located with");
  }
  view->reads = located->reads().flat<int64_t>().data();
  return absl::OkStatus();
}

// The batch with the rows that are read in the place of the rows that are trained.
inline Batch AsRead(Batch batch) {
  if (batch.reads != nullptr) batch.ids = batch.reads;
  return batch;
}

class RowsBuffer : public BorrowedBuffer {
 public:
  RowsBuffer(tensorflow::Tensor rows, tensorflow::Tensor located)
      : BorrowedBuffer(std::move(rows)), located_(std::move(located)) {}

 private:
  const tensorflow::Tensor located_;
};

// `rows`, [num_rows] of a table of the batch, as a tensor that holds the batch: a gradient may be
// applied long after.
inline tensorflow::Tensor HoldBatch(const tensorflow::Tensor& rows,
                                    const tensorflow::Tensor& located) {
  tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(new RowsBuffer(rows, located));
  return tensorflow::Tensor(rows.dtype(), rows.shape(), std::move(buffer));
}

// Refuses a gradient of rows that were located for reading: keys that were new had no row.
// `keyed`: which of the group's tables are found by key.
inline absl::Status CheckLocatedForTraining(const tensorflow::Tensor& batch,
                                            const GroupAttrs& attrs,
                                            const std::vector<int32_t>& keyed) {
  if (keyed.empty()) return absl::OkStatus();
  const LocatedBuffer* located = LocatedBufferOf(batch);
  if (located == nullptr || located->training()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "table '" + attrs.table_names[keyed[0]] +
      "': expected the gradient of a lookup that was made to be trained, got one that was made to "
      "be read, in which new keys have no row. In a graph of TensorFlow 1, take gradients "
      "(optimizer.minimize) before a session first runs the lookup; in eager code, look up under "
      "the tape.");
}

}  // namespace group_embedding
