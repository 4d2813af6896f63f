// FetchedRows: the rows of one call, from the copies of RowCache and from host memory.
//
// A call, which looks up rows of several tables:
//   1. FindRows        row numbers -> addresses: of copies, or of rows that it brings over the bus,
//                      each once and in the order of the host's pages, to scratch memory
//   2. the lookup      reads those addresses
//   3. KeepRows        copies rows that were brought to their sets: where a copy is free, or the
//                      row is asked for a second time, in the place of the copy that was read
//                      longest ago
// Rows are copied after the lookup, on its stream, so that no copy is written while it is read.
// Calls of several streams take turns (CacheTurns).
#pragma once

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "serving/device/row_cache.h"

namespace group_embedding {

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
