// The lookup of a model that answers requests: keys to rows of the session's version, and their
// sums, in one op. Devices differ in where located rows lie and in what sums them up.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/fault.h"
#include "core/row_format.h"
#include "serving/table/served_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/serving/ops/request_threads.h"
#include "tf/serving/ops/served_request.h"
#include "tf/serving/ops/served_tables.h"
#include "tf/support/batch_input.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/resource_locks.h"
#if GOOGLE_CUDA
#include "serving/device/request_buffers.h"
#endif

namespace group_embedding {

// What table t of the group is read from.
struct ServedSource {
  ServedTablePtr served;
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
};

// Rows in the place of a batch's ids, in host memory.
struct LocatedRows {
  int64_t* rows = nullptr;    // [num_ids]
  tensorflow::Tensor memory;  // of the host, or else
#if GOOGLE_CUDA
  std::unique_ptr<RequestBuffers::Buffer> buffer;  // page-locked, from which all of the batch goes
#endif
};

class ServedLookupOp : public tensorflow::OpKernel {
 public:
  explicit ServedLookupOp(tensorflow::OpKernelConstruction* context);
  void Compute(tensorflow::OpKernelContext* context) override;

 protected:
  using Readers = std::deque<ServedTable::Reader>;

  virtual BatchCheck batch_check() const { return BatchCheck::kFeatureSplits; }
  // Allocates the rows of a batch's ids.
  virtual absl::Status MakeRows(tensorflow::OpKernelContext* context, const Batch& batch,
                                LocatedRows* located);

  // Writes the outputs. group: its batch is in host memory, with `located` in the place of ids.
  // readers: are to live as long as rows are read.
  virtual absl::Status Run(tensorflow::OpKernelContext* context,
                           const std::vector<ServedSource>& sources, const Group& group,
                           const std::vector<RowFormat>& formats,
                           const std::shared_ptr<Readers>& readers, LocatedRows* located,
                           Fault* fault) = 0;

  // More than any table has, and less than the number that stands for an id outside of its table.
  static constexpr int64_t kMostRows = int64_t{1} << 48;

  const GroupAttrs attrs_;

 private:
  absl::Status FindSources(tensorflow::OpKernelContext* context,
                           std::vector<ServedSource>* sources) const;
  absl::Status ReadTables(tensorflow::OpKernelContext* context,
                          const std::vector<ServedSource>& sources, SharedLocks* locks,
                          std::vector<Table>* tables, std::vector<RowFormat>* formats) const;
  absl::Status CheckServed(const ServedTableResource& table, size_t t) const;
  // rows: [ids] written, in the place of keys.
  absl::Status Locate(tensorflow::OpKernelContext* context,
                      const std::vector<ServedSource>& sources, const BatchInput& batch,
                      int64_t* rows) const;
  // Brings rows that are not in memory: one read of each table for all its features.
  absl::Status Fetch(const std::vector<ServedSource>& sources, const BatchInput& batch,
                     int64_t* rows) const;
  // In the caller's ids: those of a table by row number were replaced.
  absl::Status Explain(Fault fault, const std::vector<ServedSource>& sources,
                       const BatchInput& batch, std::vector<Table> tables) const;

  std::vector<int32_t> keyed_;
};

}  // namespace group_embedding
