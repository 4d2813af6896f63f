// A batch whose keys have become row numbers: a tensor whose buffer keeps those rows from being
// given to other keys, for as long as anybody holds the tensor.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "table/host_table.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/kernels/group_attrs.h"

namespace group_embedding {

// One table's part: its batch has begun, and ends with the lease.
class BatchLease {
 public:
  explicit BatchLease(std::shared_ptr<EmbeddingTable> table)
      : owner_(std::move(table)),
        table_(static_cast<HostTable*>(owner_.get())),
        batch_(table_->BeginBatch()) {}
  ~BatchLease() { table_->EndBatch(batch_); }
  BatchLease(const BatchLease&) = delete;
  BatchLease& operator=(const BatchLease&) = delete;

  HostTable* table() const { return table_; }

 private:
  const std::shared_ptr<EmbeddingTable> owner_;
  HostTable* const table_;
  const int64_t batch_;
};

class LocatedBuffer : public tensorflow::TensorBuffer {
 public:
  LocatedBuffer(tensorflow::Tensor memory, std::vector<std::unique_ptr<BatchLease>> leases,
                bool training)
      : TensorBuffer(memory.data()),
        memory_(std::move(memory)),
        leases_(std::move(leases)),
        training_(training) {}

  size_t size() const override { return memory_.TotalBytes(); }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  bool training() const { return training_; }

 private:
  const tensorflow::Tensor memory_;
  const std::vector<std::unique_ptr<BatchLease>> leases_;
  const bool training_;
};

// Refuses a gradient of rows that were located for reading: keys that were new had no row.
// `keyed`: which of the group's tables are found by key.
inline absl::Status CheckLocatedForTraining(const tensorflow::Tensor& batch,
                                            const GroupAttrs& attrs,
                                            const std::vector<int32_t>& keyed) {
  if (keyed.empty()) return absl::OkStatus();
  const tensorflow::TensorBuffer* buffer = tensorflow::DMAHelper::buffer(&batch);
  const auto* located = dynamic_cast<const LocatedBuffer*>(buffer);
  if (located == nullptr || located->training()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "table '" + attrs.table_names[keyed[0]] +
      "': expected the gradient of a lookup that was made to be trained, got one that was made to "
      "be read, in which new keys have no row. In a graph of TensorFlow 1, take gradients "
      "(optimizer.minimize) before a session first runs the lookup; in eager code, look up under "
      "the tape.");
}

}  // namespace group_embedding
