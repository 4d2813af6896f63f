// DeviceSnapshot: the content of a DeviceHash at one instant, as RowSnapshot (row_snapshot.h) on
// the host.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "core/device_buffer.h"
#include "core/status.h"
#include "table/device/device_table_ref.cuh"
#include "table/memory.h"

namespace group_embedding {

struct RowArray;

// Copies of rows that change while a snapshot is read. Its methods enqueue; the caller has them
// follow each other and all writes.
class RowCopies {
 public:
  static constexpr int64_t kRowsPerRead = 1 << 16;

  // `arrays`: the arrays of all rows with the bytes of a row, RowInfo first.
  RowCopies(const std::vector<RowArray>& arrays, int64_t first_row, int64_t num_rows,
            int64_t changed_since, cudaStream_t stream, Status* error);
  ~RowCopies();
  RowCopies(const RowCopies&) = delete;
  RowCopies& operator=(const RowCopies&) = delete;

  int64_t num_rows() const { return num_rows_; }
  size_t num_slots() const { return array_bytes_.size() - 2; }
  const RowCopiesRef* ref() const { return ref_; }

  // Space for copies of up to so many rows more.
  Status MakeSpace(int64_t num_rows);
  // Copies rows that were not copied yet; `rows`: row numbers in device memory.
  cudaError_t Put(const int64_t* rows, int64_t num_rows, cudaStream_t stream) const;
  // After rows were copied, here or by a kernel that has ref(): tells the host how many.
  cudaError_t Report(cudaStream_t stream) const;
  // Reads rows [begin, end), at most kRowsPerRead. `rows` is complete when it returns; what is
  // enqueued on other streams after `read` was called need not wait for more than the device's
  // copy.
  template <typename Read>
  Status ReadRows(int64_t begin, int64_t end, cudaStream_t stream, const Read& enqueued,
                  KeyedRows* rows);

 private:
  cudaError_t Gather(int64_t begin, int64_t end, cudaStream_t stream) const;
  Status CopyOut(cudaStream_t stream, KeyedRows* rows) const;

  struct Counts {
    int64_t enqueued, num_copies;
  };

  const int64_t num_rows_;
  std::vector<int32_t> array_bytes_;
  std::vector<std::unique_ptr<Memory>> copies_, out_;
  std::unique_ptr<Memory> states_, small_;
  RowCopiesRef* ref_ = nullptr;             // in small_
  unsigned long long* counters_ = nullptr;  // in small_: num_copies, num_out
  Counts* reported_ = nullptr;              // page-locked
  int64_t enqueued_ = 0;
};

template <typename Enqueued>
Status RowCopies::ReadRows(int64_t begin, int64_t end, cudaStream_t stream,
                           const Enqueued& enqueued, KeyedRows* rows) {
  const cudaError_t error = Gather(begin, end, stream);
  enqueued();
  const Status status = CudaStatus(error);
  return status.ok() ? CopyOut(stream, rows) : status;
}

}  // namespace group_embedding
