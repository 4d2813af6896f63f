// EmbeddingTableResource: a keyed table as a TensorFlow resource, shared by the ops that take its
// handle.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "table/host/host_table.h"
#include "table/no_memory.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/mutex.h"
#include "tf/support/table_saves.h"

namespace group_embedding {

// An op holds mu() shared to locate keys or to read rows and their infos. It holds mu() exclusively
// to write rows, to insert, erase or evict keys, to make slots, and to begin or end a snapshot.
class EmbeddingTableResource : public tensorflow::ResourceBase {
 public:
  explicit EmbeddingTableResource(std::string name) : name_(std::move(name)) {}

  std::string DebugString() const override { return "embedding table '" + name_ + "'"; }
  const std::string& name() const { return name_; }
  tensorflow::mutex* mu() { return &mu_; }

  // The methods below need mu().

  // Null before initialization. Code that uses the table without the lock, as a located batch does,
  // has to copy the pointer: the resource may be initialized with another table meanwhile.
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

// Converts the status of a table's function.
inline absl::Status ToStatus(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::ResourceExhaustedError(status.message());
}

inline absl::Status OutOfMemory(const std::bad_alloc& error) {
  return absl::ResourceExhaustedError("the call is too large: " + DescribeNoMemory(error) +
                                      "; give the process more memory, or smaller batches");
}

// What the core throws, where memory runs out, or a device fails in a function that has no other
// way to tell, as a status. `body` returns one.
template <typename Body>
absl::Status CatchErrors(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc& error) {
    return OutOfMemory(error);
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// Refuses a table in the memory of another device than the op's.
inline absl::Status CheckReachable(tensorflow::OpKernelContext* context, EmbeddingTable& table) {
  const bool on_gpu = context->op_device_context() != nullptr;
  const bool in_host_memory = table.host() != nullptr;
  if (on_gpu != in_host_memory) return absl::OkStatus();
  const std::string where = in_host_memory ? "host memory" : "the memory of a GPU";
  return absl::InvalidArgumentError("table '" + table.options().name + "' is in " + where +
                                    ", and its group runs on a " + (on_gpu ? "GPU" : "CPU") +
                                    "; look it up and the group's other tables in two calls");
}

using EmbeddingTablePtr = tensorflow::core::RefCountPtr<EmbeddingTableResource>;

// The value of a scalar, input `name` of the op, in host memory.
template <typename T>
absl::Status ReadScalar(tensorflow::OpKernelContext* context, const char* name, T* value) {
  const tensorflow::Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (tensor->dims() != 0) {
    return absl::InvalidArgumentError(std::string(name) + ": expected a scalar, got shape " +
                                      tensor->shape().DebugString());
  }
  *value = tensor->scalar<T>()();
  return absl::OkStatus();
}

// The resource that a handle, input `input` of the op, names; an error if it is of another type.
template <typename Resource>
absl::Status FindResource(tensorflow::OpKernelContext* context, int input,
                          tensorflow::core::RefCountPtr<Resource>* resource) {
  const tensorflow::Tensor& handle = context->input(input);
  if (handle.dtype() != tensorflow::DT_RESOURCE || handle.NumElements() != 1) {
    return absl::InvalidArgumentError("input " + std::to_string(input) +
                                      ": expected a handle, got " + handle.DebugString());
  }
  return tensorflow::LookupResource(context, handle.flat<tensorflow::ResourceHandle>()(0),
                                    resource);
}

// The table that a handle, input `input` of the op, names.
inline absl::Status FindEmbeddingTable(tensorflow::OpKernelContext* context, int input,
                                       EmbeddingTablePtr* table) {
  return FindResource(context, input, table);
}

// The tables that the op's first inputs name, one handle each: as many as `tables` has elements.
inline absl::Status FindEmbeddingTables(tensorflow::OpKernelContext* context,
                                        std::vector<EmbeddingTablePtr>* tables) {
  for (size_t t = 0; t < tables->size(); ++t) {
    TF_RETURN_IF_ERROR(FindEmbeddingTable(context, static_cast<int>(t), &(*tables)[t]));
  }
  return absl::OkStatus();
}

inline std::vector<tensorflow::mutex*> MutexesOf(const std::vector<EmbeddingTablePtr>& tables) {
  std::vector<tensorflow::mutex*> mutexes;
  for (const EmbeddingTablePtr& table : tables) mutexes.push_back(table->mu());
  return mutexes;
}

}  // namespace group_embedding
