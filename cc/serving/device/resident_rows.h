// ResidentRows: all rows of a served table in a GPU's memory, at their row numbers.
//
// Lookups read rows where they are, and nothing is searched. Rows that a version brings are copied
// before the version is served. Where the table outgrows the memory that it was given, further rows
// are copied to page-locked memory of the host, behind the others in one range of addresses.
#pragma once

#include "serving/table/device_copies.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "table/device/device_memory.h"

namespace group_embedding {

class ResidentRows : public DeviceCopies {
 public:
  // Bytes for so many rows, and a quarter more for those that come later.
  static int64_t BytesFor(int64_t row_bytes, int64_t num_rows);

  // rows: [num_rows] of the table, in host memory that the device reads in place. device_bytes: at
  // most so much of the current device's memory.
  ResidentRows(const char* rows, int64_t row_bytes, int64_t num_rows, int64_t device_bytes);
  ~ResidentRows() override;

  void Forget(const int64_t*, int64_t) override {}  // readers alone matter
  void Refresh(const int64_t* rows, int64_t num_rows) override;

  // For kernels. Without memory for a row that came later: the table's own.
  const char* rows() const { return is_broken_ ? source_ : memory_->data(); }
  int64_t bytes() const { return memory_->bytes(); }
  int64_t num_rows() const { return is_broken_ ? 0 : memory_->bytes() / row_bytes_; }

 private:
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  const char* const source_;
  const int64_t row_bytes_;
  std::unique_ptr<DeviceMemory> memory_;
  std::atomic<bool> is_broken_{false};
};

}  // namespace group_embedding
#endif
