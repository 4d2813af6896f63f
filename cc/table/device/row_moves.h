// RowMoves: exchanges hot rows of a DeviceHash in host memory with cold rows in device memory.
//
// Locating records rows in host memory that are hotter than the rows moved down last. From time to
// time, best when a batch has ended, one kernel exchanges each recorded row with the least used of
// 32 rows in device memory, if that row is used less: their contents, their RowInfo and their row
// numbers in the index. The kernel has a stream of its own, beside other work of the device.
// Locating waits for it on the device. Rows that a batch in flight has located are not moved.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "core/status.h"
#include "table/device/device_memory.h"
#include "table/device/device_table_ref.cuh"

namespace group_embedding {

class RowMoves {
 public:
  // The most that one launch moves: it takes some tenths of a millisecond.
  static constexpr int64_t kMostRows = 1 << 14, kMostBytes = int64_t{4} << 20;

  RowMoves(int64_t max_rows, CacheStrategy cache_strategy, Status* error);
  ~RowMoves();
  RowMoves(const RowMoves&) = delete;
  RowMoves& operator=(const RowMoves&) = delete;

  Status Grow(int64_t num_rows) { return uses_->Grow(num_rows * kUseBytes); }
  MovesRef ref(int64_t device_rows, int64_t bytes_per_row) const;
  cudaStream_t stream() const { return stream_; }

  // Whether rows are recorded; the host may see it late.
  bool is_due() const { return *static_cast<const volatile int32_t*>(is_due_) != 0; }
  // Moves the recorded rows, except rows located in a call since `held_since`. Enqueues on
  // stream(); no other stream may use the table meanwhile.
  cudaError_t Enqueue(const DeviceTableRef& table, int64_t held_since);

  static constexpr int64_t kUseBytes = sizeof(unsigned long long);

 private:
  const CacheStrategy cache_strategy_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Memory> uses_;
  int64_t* wanted_ = nullptr;  // [kMostRows]
  MovesState* state_ = nullptr;
  int32_t* is_due_ = nullptr;  // page-locked
};

}  // namespace group_embedding
