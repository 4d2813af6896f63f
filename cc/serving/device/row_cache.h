// RowCache: copies of the rows of a served table in a GPU's memory, by row number.
//
// The table's rows are in host memory that the device reads in place. Which key has which row, in
// which version, the host has found already: a row does not change while anybody may read it, so
// that its copy is right in every version that has the row.
//
// Row r belongs to one set of kCacheWays copies. Which rows a call finds there, and which of the
// others get a copy: fetched_rows.h.
#pragma once

#include "serving/table/device_copies.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/device_buffer.h"

namespace group_embedding {

inline constexpr int kCacheWays = 8;
inline constexpr int kCacheNotes = 4;

// What kernels see of it.
struct RowCacheRef {
  const char* rows;  // of the table
  int64_t row_bytes;
  char* copies;              // [num_sets, kCacheWays, copy_bytes]
  int64_t copy_bytes;        // row_bytes, rounded up to 16
  unsigned long long* tags;  // [num_sets, kCacheWays] the row of a copy, and the call that read it
  int64_t* notes;            // [num_sets, kCacheNotes] rows that were asked for and not kept
  uint32_t* calls;           // [num_sets] the last call that kept a row
  unsigned long long* counts;  // [kNumCounts]: see RowCacheCounts
  uint64_t num_sets;
};

// Since the cache was made.
struct RowCacheCounts {
  int64_t found = 0;     // ids whose row had a copy
  int64_t brought = 0;   // rows that came over the bus, each once a call
  int64_t kept = 0;      // of these
  int64_t capacity = 0;  // copies
};

class RowCache : public DeviceCopies {
 public:
  // The bytes in which all rows of a table find a copy, but for very few.
  static int64_t BytesFor(int64_t row_bytes, int64_t num_rows);

  // rows: of the table. bytes: for the copies and what belongs to them, of the current device.
  RowCache(const char* rows, int64_t row_bytes, int64_t bytes);
  ~RowCache() override;

  void Forget(const int64_t* rows, int64_t num_rows) override;
  void Refresh(const int64_t*, int64_t) override {}  // rows are copied when they are asked for

  RowCacheRef ref() const {
    RowCacheRef ref = ref_;
    if (is_broken_) ref.num_sets = 0;
    return ref;
  }
  RowCacheCounts counts() const;
  int64_t bytes() const { return bytes_; }

 private:
  int device_ = 0;
  cudaStream_t stream_ = nullptr;  // of Forget
  std::unique_ptr<DeviceBuffer<char>> memory_;
  RowCacheRef ref_ = {};
  int64_t bytes_ = 0;
  // What Forget could not do leaves copies that nobody may read.
  std::atomic<bool> is_broken_{false};
};

}  // namespace group_embedding
#endif
