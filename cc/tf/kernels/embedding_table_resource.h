// A keyed table as a TensorFlow resource: what the ops share that take a handle of one.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "table/host_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/mutex.h"
#include "tf/kernels/table_saves.h"

namespace group_embedding {

// Who locates keys or reads rows and what is kept of them has mu() shared; who writes rows,
// inserts, erases, evicts, makes slots or begins a snapshot has it alone.
class EmbeddingTableResource : public tensorflow::ResourceBase {
 public:
  explicit EmbeddingTableResource(std::string name) : name_(std::move(name)) {}

  std::string DebugString() const override { return "embedding table '" + name_ + "'"; }
  const std::string& name() const { return name_; }
  tensorflow::mutex* mu() { return &mu_; }

  // The rest needs the lock.

  // Null before it is initialized. Whoever needs the table without the lock, as a located batch
  // does, shares it: it may be initialized anew meanwhile.
  const std::shared_ptr<EmbeddingTable>& table() const { return table_; }
  void Initialize(std::shared_ptr<EmbeddingTable> table) { table_ = std::move(table); }

  TableSaves& saves() { return saves_; }

  absl::Status CheckInitialized() const {
    if (table_ != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "table '" + name_ + "': expected an initialized EmbeddingVariable; run its initializer");
  }

 private:
  const std::string name_;
  tensorflow::mutex mu_;
  std::shared_ptr<EmbeddingTable> table_;
  TableSaves saves_;
};

// What a function of a table returns that says in words what went wrong, or nothing.
inline absl::Status ToStatus(const std::string& error) {
  if (error.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(error);
}

// Refuses a table in host memory where an op runs on a GPU, which has no pointers into that.
inline absl::Status CheckReachable(tensorflow::OpKernelContext* context,
                                   const EmbeddingTable& table) {
  const bool on_gpu = context->op_device_context() != nullptr;
  if (!on_gpu || dynamic_cast<const HostTable*>(&table) == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "table '" + table.options().name +
      "' is in host memory, and its group runs on a GPU; put the group's other tables on the CPU, "
      "or look them up in another call");
}

using EmbeddingTablePtr = tensorflow::core::RefCountPtr<EmbeddingTableResource>;

// The table that a handle, input `input` of the op, names.
inline absl::Status FindEmbeddingTable(tensorflow::OpKernelContext* context, int input,
                                       EmbeddingTablePtr* table) {
  return tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, input), table);
}

}  // namespace group_embedding
