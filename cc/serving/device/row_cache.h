// RowCache: copies of the rows of a served table in a GPU's memory, by row number.
//
// The table's rows are in host memory that the device reads in place. Which key has which row, in
// which version, the host has found already: a row does not change while anybody may read it, so
// that its copy is right in every version that has the row.
//
// Row r belongs to one set of kCacheWays copies. A call, which looks up rows of several tables:
//   1. FindRows        row numbers -> addresses: of copies, or of rows that it brings over the bus,
//                      each once and in the order of the host's pages, to scratch memory
//   2. the lookup      reads those addresses
//   3. KeepRows        copies rows that were brought to their sets: where a copy is free, or the
//                      row is asked for a second time, in the place of the copy that was read
//                      longest ago
// Rows are copied after the lookup, on its stream, so that no copy is written while it is read.
// Calls of several streams take turns (CacheTurns).
#pragma once

#include "serving/row_copies.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

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

class RowCache : public RowCopies {
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

// The calls of all streams that use some caches, one after the other.
class CacheTurns {
 public:
  CacheTurns();
  ~CacheTurns();

  // Holds the turn while a call is enqueued. `error`: of CUDA.
  class Turn {
   public:
    Turn(CacheTurns* turns, cudaStream_t stream, cudaError_t* error);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    uint32_t call() const { return call_; }  // 1, 2, ...

   private:
    CacheTurns* const turns_;
    const std::lock_guard<std::mutex> lock_;
    const cudaStream_t stream_;
    uint32_t call_;
  };

 private:
  std::mutex mutex_;
  cudaEvent_t last_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
  uint32_t num_calls_ = 0;
};

// Rows of one table in a call: those at positions [first, first + count).
struct CachedRows {
  RowCacheRef cache;
  int32_t table;  // rows of one table have one number
  int64_t first, count;
};

// What a call shares: device memory of FetchedRows::Bytes.
class FetchedRows {
 public:
  // num_rows: positions of the call.
  static int64_t Bytes(const std::vector<CachedRows>& requests, int64_t num_rows);

  FetchedRows(std::vector<CachedRows> requests, int64_t num_rows, uint32_t call, void* memory)
      : requests_(std::move(requests)), num_rows_(num_rows), call_(call), memory_(memory) {}

  // rows: [num_rows] on the device; a row number >= 0 of the requests becomes an address; other
  // numbers, -1 and those that no table has, stay.
  cudaError_t FindRows(int64_t* rows, cudaStream_t stream);
  cudaError_t KeepRows(cudaStream_t stream);

 private:
  const std::vector<CachedRows> requests_;
  const int64_t num_rows_;
  const uint32_t call_;
  void* const memory_;
};

}  // namespace group_embedding
#endif
