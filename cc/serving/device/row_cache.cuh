// The sets of a RowCache, as row_cache.cu and fetched_rows.cu see them, which alone include this.
#pragma once

#include <algorithm>

#include "core/descriptors.cuh"
#include "serving/device/row_cache.h"
#include "table/initial_values.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;

// A tag: 40 bits of the row, 24 of the call that read the copy. A copy without a row has all ones.
constexpr int kRowBits = 40;
constexpr unsigned long long kRowMask = (1ull << kRowBits) - 1, kNoTag = ~0ull;
constexpr uint32_t kCallMask = 0xFFFFFF;
constexpr int64_t kNoNote = -1;

enum Count { kFound, kPrefetched, kKept, kNumCounts };

__device__ inline unsigned long long MakeTag(int64_t row, uint32_t call) {
  return static_cast<unsigned long long>(row) | static_cast<unsigned long long>(call & kCallMask)
                                                    << kRowBits;
}
__device__ inline bool HasRow(unsigned long long tag, int64_t row) {
  return static_cast<int64_t>(tag & kRowMask) == row;
}
__device__ inline uint32_t Age(unsigned long long tag, uint32_t call) {
  return (call - static_cast<uint32_t>(tag >> kRowBits)) & kCallMask;
}
__device__ inline uint64_t SetOf(const RowCacheRef& cache, int64_t row) {
  return __umul64hi(MixBits(static_cast<uint64_t>(row)), cache.num_sets);
}
__device__ inline bool IsRow(int64_t row) {
  return row >= 0 && row < static_cast<int64_t>(kRowMask);
}

inline int64_t CopyBytes(int64_t row_bytes) { return (row_bytes + 15) / 16 * 16; }

inline unsigned BlocksFor(int64_t count) {
  return static_cast<unsigned>(std::max<int64_t>((count + kThreads - 1) / kThreads, 1));
}

}  // namespace
}  // namespace group_embedding
