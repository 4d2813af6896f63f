// The kernels of fetched_rows.cu, which alone includes this.
#pragma once

#include "core/descriptors.cuh"
#include "serving/device/copy_row.cuh"
#include "serving/device/fetched_rows.h"
#include "serving/device/row_cache.cuh"

namespace group_embedding {
namespace {

constexpr int kWarpsPerBlock = kThreads / kWarpSize;

// A copy that is read is marked again after so many calls.
constexpr uint32_t kMarkAfter = 8;

// Rows cross the bus in the order of the host's large pages: in the order of a batch the bus has
// less than half of its speed. Pages with one remainder share a bucket.
constexpr int kPageBits = 21, kNumBuckets = 4096, kScanThreads = 1024;

// A row that a call brings.
struct PrefetchedRow {
  int64_t row;
  int64_t request;  // one of its table
};

struct Request {
  RowCacheRef cache;
  int64_t table, first, count;
};

struct FetchArgs {
  const Request* requests;      // [num_requests]
  const int64_t* first_blocks;  // [num_requests + 1]
  int64_t num_requests;
  int64_t* rows;
  uint32_t call;
  // The rows without a copy, each once: cells with their table and row, and their number.
  unsigned long long* keys;  // [num_cells] table + 1, row; 0: free
  uint32_t* numbers;         // [num_cells]
  uint64_t num_cells;        // a power of two
  uint32_t* num_prefetched;
  uint32_t* buckets;  // [kNumBuckets] how many rows; then where the next of them goes in `order`
  uint32_t* order;    // [rows of the call] numbers of rows
  PrefetchedRow* brought;  // [rows of the call]
  char* memory;            // [capacity, stride] their content
  int64_t capacity, stride;

  __device__ uint32_t* BucketOf(const PrefetchedRow& row) const {
    const RowCacheRef& cache = requests[row.request].cache;
    const auto address = reinterpret_cast<uintptr_t>(cache.rows + row.row * cache.row_bytes);
    return buckets + (address >> kPageBits) % kNumBuckets;
  }
};

// The cell of a row without a copy. The thread that takes it gives the row its number.
__device__ int64_t TakeCell(const FetchArgs& args, int64_t request, int64_t table, int64_t row) {
  const auto key =
      static_cast<unsigned long long>(table + 1) << kRowBits | static_cast<unsigned long long>(row);
  for (uint64_t cell = MixBits(key) & (args.num_cells - 1);;
       cell = (cell + 1) & (args.num_cells - 1)) {
    const auto former = atomicCAS(args.keys + cell, 0ull, key);
    if (former == 0) {
      const uint32_t number = atomicAdd(args.num_prefetched, 1u);
      args.numbers[cell] = number;
      args.brought[number] = {row, request};
      atomicAdd(args.BucketOf(args.brought[number]), 1u);
    }
    if (former == 0 || former == key) return static_cast<int64_t>(cell);
  }
}

// A thread has one row: its copy's address, or -2 - its cell.
__global__ void __launch_bounds__(kThreads) FindRowsKernel(FetchArgs args) {
  const int64_t r = FindOwner(args.first_blocks, args.num_requests, blockIdx.x);
  const Request& request = args.requests[r];
  const RowCacheRef& cache = request.cache;
  const int64_t i = (blockIdx.x - args.first_blocks[r]) * kThreads + threadIdx.x;
  bool found = false;
  if (i < request.count) {
    int64_t* at = args.rows + request.first + i;
    const int64_t row = *at;
    if (IsRow(row)) {
      if (cache.num_sets > 0) {
        const uint64_t first = SetOf(cache, row) * kCacheWays;
        unsigned long long tags[kCacheWays];
#pragma unroll
        for (int w = 0; w < kCacheWays; w += 2) {
          const auto pair = __ldcg(reinterpret_cast<const ulonglong2*>(cache.tags + first + w));
          tags[w] = pair.x, tags[w + 1] = pair.y;
        }
#pragma unroll
        for (int w = 0; w < kCacheWays; ++w) {
          if (found || !HasRow(tags[w], row)) continue;
          found = true;
          *at = reinterpret_cast<int64_t>(cache.copies + (first + w) * cache.copy_bytes);
          if (Age(tags[w], args.call) >= kMarkAfter) {
            atomicCAS(cache.tags + first + w, tags[w], MakeTag(row, args.call));
          }
        }
      }
      if (!found) *at = -2 - TakeCell(args, r, request.table, row);
    }
  }
  const unsigned votes = __ballot_sync(kFullWarp, found);
  if (threadIdx.x % kWarpSize == 0 && votes != 0) {
    atomicAdd(cache.counts + kFound, static_cast<unsigned long long>(__popc(votes)));
  }
}

// One block: where the rows of each bucket begin.
__global__ void __launch_bounds__(kScanThreads) ScanBucketsKernel(FetchArgs args) {
  constexpr int kEach = kNumBuckets / kScanThreads, kWarps = kScanThreads / kWarpSize;
  static_assert(kWarps == kWarpSize, "one warp scans the sums of all");
  __shared__ uint32_t ends[kWarps];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const auto sum_to_lane = [lane](uint32_t value) {
    for (int step = 1; step < kWarpSize; step *= 2) {
      const uint32_t before = __shfl_up_sync(kFullWarp, value, step);
      if (lane >= step) value += before;
    }
    return value;
  };
  uint32_t* const own = args.buckets + threadIdx.x * kEach;
  uint32_t counts[kEach], sum = 0;
  for (int k = 0; k < kEach; ++k) sum += counts[k] = own[k];
  const uint32_t in_warp = sum_to_lane(sum);
  if (lane == kWarpSize - 1) ends[warp] = in_warp;
  __syncthreads();
  if (warp == 0) ends[lane] = sum_to_lane(ends[lane]);
  __syncthreads();
  uint32_t begin = in_warp - sum + (warp > 0 ? ends[warp - 1] : 0);
  for (int k = 0; k < kEach; ++k) {
    own[k] = begin;
    begin += counts[k];
  }
}

__global__ void __launch_bounds__(kThreads) OrderRowsKernel(FetchArgs args) {
  const uint32_t num_rows = *args.num_prefetched;
  for (uint32_t n = blockIdx.x * kThreads + threadIdx.x; n < num_rows; n += gridDim.x * kThreads) {
    args.order[atomicAdd(args.BucketOf(args.brought[n]), 1u)] = n;
  }
}

// Warps bring the rows over the bus, one after the other.
__global__ void __launch_bounds__(kThreads) PrefetchRowsKernel(FetchArgs args) {
  const int64_t num_rows = *args.num_prefetched;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t i = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize; i < num_rows;
       i += num_warps) {
    const uint32_t n = args.order[i];
    if (n >= args.capacity) continue;
    const PrefetchedRow row = args.brought[n];
    const RowCacheRef& cache = args.requests[row.request].cache;
    CopyRow(cache.rows + row.row * cache.row_bytes, args.memory + n * args.stride, cache.row_bytes,
            lane);
    if (lane == 0) atomicAdd(cache.counts + kPrefetched, 1ull);
  }
}

// The addresses of rows without a copy: of what was brought or, beyond its capacity, in place.
__global__ void __launch_bounds__(kThreads) AddressRowsKernel(FetchArgs args, int64_t num_rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= num_rows || args.rows[i] > -2) return;
  const uint32_t number = args.numbers[-2 - args.rows[i]];
  if (number < args.capacity) {
    args.rows[i] = reinterpret_cast<int64_t>(args.memory + number * args.stride);
    return;
  }
  const PrefetchedRow row = args.brought[number];
  const RowCacheRef& cache = args.requests[row.request].cache;
  args.rows[i] = reinterpret_cast<int64_t>(cache.rows + row.row * cache.row_bytes);
}

// The way of a set that a row takes: a free one, else that of the copy that was read longest ago.
// All lanes of a warp call it; `tag`: of lanes below kCacheWays. GPUs before Ampere have no
// __reduce_max_sync.
__device__ int WayToTake(unsigned long long tag, uint32_t call, int lane, bool* is_free) {
  const unsigned free = __ballot_sync(kFullWarp, lane < kCacheWays && tag == kNoTag);
  *is_free = free != 0;
  if (*is_free) return __ffs(free) - 1;
  uint32_t oldest = lane < kCacheWays ? Age(tag, call) << 3 | lane : 0;
#if __CUDA_ARCH__ >= 800
  oldest = __reduce_max_sync(kFullWarp, oldest);
#else
  for (int step = kCacheWays / 2; step > 0; step /= 2) {
    oldest = max(oldest, __shfl_xor_sync(kFullWarp, oldest, step));
  }
  oldest = __shfl_sync(kFullWarp, oldest, 0);
#endif
  return static_cast<int>(oldest & 7);
}

// A warp per brought row. A set takes one row a call.
__global__ void __launch_bounds__(kThreads) KeepRowsKernel(FetchArgs args) {
  static_assert(kCacheWays == 8, "three bits in WayToTake");
  const int64_t num_rows = min(int64_t{*args.num_prefetched}, args.capacity);
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t n = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize; n < num_rows;
       n += num_warps) {
    const PrefetchedRow row = args.brought[n];
    const RowCacheRef& cache = args.requests[row.request].cache;
    if (cache.num_sets == 0) continue;
    const uint64_t set = SetOf(cache, row.row);
    uint32_t last = 0;
    if (lane == 0) last = atomicExch(cache.calls + set, args.call);
    if (__shfl_sync(kFullWarp, last, 0) == args.call) continue;
    const auto tag = lane < kCacheWays ? __ldcg(cache.tags + set * kCacheWays + lane) : kNoTag;
    const int64_t note = lane < kCacheNotes ? cache.notes[set * kCacheNotes + lane] : kNoNote;
    bool is_free;
    const int way = WayToTake(tag, args.call, lane, &is_free);
    const bool asked_again = __any_sync(kFullWarp, lane < kCacheNotes && note == row.row);
    if (!is_free && !asked_again) {
      if (lane == 0) cache.notes[set * kCacheNotes + args.call % kCacheNotes] = row.row;
      continue;
    }
    const uint64_t copy = set * kCacheWays + way;
    CopyWords<uint4>(args.memory + n * args.stride, cache.copies + copy * cache.copy_bytes,
                     cache.copy_bytes, lane);
    if (lane == 0) {
      __stcg(cache.tags + copy, MakeTag(row.row, args.call));
      atomicAdd(cache.counts + kKept, 1ull);
    }
  }
}

}  // namespace
}  // namespace group_embedding
