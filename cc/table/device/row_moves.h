// Moves rows of a DeviceHash between the device's memory and the host's: hot ones up, cold ones
// down, as many.
//
// Locating notes rows in host memory that are hotter than those that had to leave last. Once in a
// while, best when a batch has ended, each of them changes places with the coldest of 32 rows in
// device memory, if that is colder: contents, what is kept of the rows and their numbers in the
// index, all in one kernel on a stream of its own, while the device goes on with other work. Who
// locates keys waits for it, on the device; rows that a batch in flight has located stay.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "table/device/device_memory.h"
#include "table/device/device_table_ref.cuh"

namespace group_embedding {

class RowMoves {
 public:
  // At once: some tenths of a millisecond's worth.
  static constexpr int64_t kMostRows = 1 << 14, kMostBytes = int64_t{4} << 20;

  RowMoves(int64_t max_rows, Coldest coldest, std::string* error);
  ~RowMoves();
  RowMoves(const RowMoves&) = delete;
  RowMoves& operator=(const RowMoves&) = delete;

  std::string Grow(int64_t num_rows) { return uses_->Grow(num_rows * kUseBytes); }
  MovesRef ref(int64_t device_rows, int64_t bytes_per_row) const;
  cudaStream_t stream() const { return stream_; }

  // Whether rows are noted, as far as the host has heard.
  bool is_due() const { return *static_cast<const volatile int32_t*>(is_due_) != 0; }
  // Moves the rows noted so far, but none that was located in a call since `held_since`. On
  // stream(), which must have the table alone.
  cudaError_t Enqueue(const DeviceTableRef& table, int64_t held_since);

  static constexpr int64_t kUseBytes = sizeof(unsigned long long);

 private:
  const Coldest coldest_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Memory> uses_;
  int64_t* wanted_ = nullptr;  // [kMostRows]
  MovesState* state_ = nullptr;
  int32_t* is_due_ = nullptr;  // page-locked
};

}  // namespace group_embedding
