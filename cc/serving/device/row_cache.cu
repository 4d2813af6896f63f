#include <algorithm>
#include <utility>

#include "core/descriptors.cuh"
#include "serving/device/copy_row.cuh"
#include "serving/device/row_cache.h"
#include "table/initial_values.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
constexpr int64_t kMostBroughtBytes = int64_t{256} << 20;  // a call; others are read in place

// A tag: 40 bits of the row, 24 of the call that read the copy. A copy without a row has all ones.
constexpr int kRowBits = 40;
constexpr unsigned long long kRowMask = (1ull << kRowBits) - 1, kNoTag = ~0ull;
constexpr uint32_t kCallMask = 0xFFFFFF;
// A copy that is read is marked again after so many calls.
constexpr uint32_t kMarkAfter = 8;
constexpr int64_t kNoNote = -1;

// Rows cross the bus in the order of the host's large pages: in the order of a batch the bus has
// less than half of its speed. Pages with one remainder share a bucket.
constexpr int kPageBits = 21, kNumBuckets = 4096, kScanThreads = 1024;

enum Count { kFound, kBrought, kKept, kNumCounts };

__device__ unsigned long long MakeTag(int64_t row, uint32_t call) {
  return static_cast<unsigned long long>(row) | static_cast<unsigned long long>(call & kCallMask)
                                                    << kRowBits;
}
__device__ bool HasRow(unsigned long long tag, int64_t row) {
  return static_cast<int64_t>(tag & kRowMask) == row;
}
__device__ uint32_t Age(unsigned long long tag, uint32_t call) {
  return (call - static_cast<uint32_t>(tag >> kRowBits)) & kCallMask;
}
__device__ uint64_t SetOf(const RowCacheRef& cache, int64_t row) {
  return __umul64hi(MixBits(static_cast<uint64_t>(row)), cache.num_sets);
}
__device__ bool IsRow(int64_t row) { return row >= 0 && row < static_cast<int64_t>(kRowMask); }

__global__ void ClearKernel(RowCacheRef cache) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t s = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; s < cache.num_sets;
       s += stride) {
    for (int w = 0; w < kCacheWays; ++w) cache.tags[s * kCacheWays + w] = kNoTag;
    for (int n = 0; n < kCacheNotes; ++n) cache.notes[s * kCacheNotes + n] = kNoNote;
    cache.calls[s] = 0;
  }
}

__global__ void ForgetKernel(RowCacheRef cache, const int64_t* rows, int64_t num_rows) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= num_rows) return;
  auto* tags = cache.tags + SetOf(cache, rows[i]) * kCacheWays;
  for (int w = 0; w < kCacheWays; ++w) {
    // A call may mark the copies of other rows meanwhile, and move them.
    for (auto tag = __ldcg(tags + w); HasRow(tag, rows[i]); tag = __ldcg(tags + w)) {
      atomicCAS(tags + w, tag, kNoTag);
    }
  }
}

// A row that a call brings.
struct BroughtRow {
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
  uint32_t* num_brought;
  uint32_t* buckets;    // [kNumBuckets] how many rows; then where the next of them goes in `order`
  uint32_t* order;      // [rows of the call] numbers of rows
  BroughtRow* brought;  // [rows of the call]
  char* memory;         // [capacity, stride] their content
  int64_t capacity, stride;

  __device__ uint32_t* BucketOf(const BroughtRow& row) const {
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
      const uint32_t number = atomicAdd(args.num_brought, 1u);
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
  const uint32_t num_rows = *args.num_brought;
  for (uint32_t n = blockIdx.x * kThreads + threadIdx.x; n < num_rows; n += gridDim.x * kThreads) {
    args.order[atomicAdd(args.BucketOf(args.brought[n]), 1u)] = n;
  }
}

// Warps bring the rows over the bus, one after the other.
__global__ void __launch_bounds__(kThreads) BringRowsKernel(FetchArgs args) {
  const int64_t num_rows = *args.num_brought;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t i = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize; i < num_rows;
       i += num_warps) {
    const uint32_t n = args.order[i];
    if (n >= args.capacity) continue;
    const BroughtRow row = args.brought[n];
    const RowCacheRef& cache = args.requests[row.request].cache;
    CopyRow(cache.rows + row.row * cache.row_bytes, args.memory + n * args.stride, cache.row_bytes,
            lane);
    if (lane == 0) atomicAdd(cache.counts + kBrought, 1ull);
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
  const BroughtRow row = args.brought[number];
  const RowCacheRef& cache = args.requests[row.request].cache;
  args.rows[i] = reinterpret_cast<int64_t>(cache.rows + row.row * cache.row_bytes);
}

// The way of a set that a row takes: a free one, else that of the copy that was read longest ago.
// All lanes of a warp call it; `tag`: of lanes below kCacheWays. By shuffles, as __reduce_max_sync
// is not there before compute capability 8.0.
__device__ int WayToTake(unsigned long long tag, uint32_t call, int lane, bool* is_free) {
  const unsigned free = __ballot_sync(kFullWarp, lane < kCacheWays && tag == kNoTag);
  *is_free = free != 0;
  if (*is_free) return __ffs(free) - 1;
  uint32_t oldest = lane < kCacheWays ? Age(tag, call) << 3 | lane : 0;
  for (int step = kCacheWays / 2; step > 0; step /= 2) {
    oldest = max(oldest, __shfl_xor_sync(kFullWarp, oldest, step));
  }
  return static_cast<int>(__shfl_sync(kFullWarp, oldest, 0) & 7);
}

// A warp per brought row. A set takes one row a call.
__global__ void __launch_bounds__(kThreads) KeepRowsKernel(FetchArgs args) {
  static_assert(kCacheWays == 8, "three bits in WayToTake");
  const int64_t num_rows = min(int64_t{*args.num_brought}, args.capacity);
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t n = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize; n < num_rows;
       n += num_warps) {
    const BroughtRow row = args.brought[n];
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

int64_t CopyBytes(int64_t row_bytes) { return (row_bytes + 15) / 16 * 16; }

int64_t SetBytes(int64_t row_bytes) {
  return kCacheWays * (CopyBytes(row_bytes) + static_cast<int64_t>(sizeof(uint64_t))) +
         kCacheNotes * static_cast<int64_t>(sizeof(int64_t)) +
         static_cast<int64_t>(sizeof(uint32_t));
}

unsigned BlocksFor(int64_t count) {
  return static_cast<unsigned>(std::max<int64_t>((count + kThreads - 1) / kThreads, 1));
}

// For warps that go through a list whose length the device knows.
unsigned BlocksForList(int64_t most) {
  const int64_t warps = std::min(most, NumMultiprocessors() * 4 * kWarpsPerBlock);
  return static_cast<unsigned>((std::max<int64_t>(warps, 1) + kWarpsPerBlock - 1) / kWarpsPerBlock);
}

// The memory of a call.
struct Layout {
  FetchArgs args = {};
  DeviceArrays arrays;
  int64_t num_blocks = 0, bytes = 0, cleared_bytes = 0;

  Layout(const std::vector<CachedRows>& requests, int64_t num_rows, void* memory) : arrays(memory) {
    std::vector<Request> device_requests;
    BlockPlan blocks;
    for (const CachedRows& request : requests) {
      device_requests.push_back({request.cache, request.table, request.first, request.count});
      blocks.Append((request.count + kThreads - 1) / kThreads);
      args.stride = std::max(args.stride, CopyBytes(request.cache.row_bytes));
    }
    num_blocks = blocks.num_blocks();
    args.requests = arrays.Add(device_requests);
    args.first_blocks = arrays.Add(blocks.first_blocks());
    args.num_requests = static_cast<int64_t>(requests.size());
    args.num_cells = 64;
    while (args.num_cells < static_cast<uint64_t>(2 * num_rows)) args.num_cells *= 2;
    args.capacity = std::min(num_rows, kMostBroughtBytes / std::max<int64_t>(args.stride, 1));
    char* const begin = static_cast<char*>(memory);
    int64_t at = arrays.size();
    auto take = [&](int64_t size) {
      char* taken = begin + at;
      at += AlignScratch(size);
      return taken;
    };
    // Cleared together.
    args.keys = reinterpret_cast<unsigned long long*>(take(args.num_cells * sizeof(*args.keys)));
    args.num_brought = reinterpret_cast<uint32_t*>(take(sizeof(uint32_t)));
    args.buckets = reinterpret_cast<uint32_t*>(take(kNumBuckets * sizeof(uint32_t)));
    cleared_bytes = at - arrays.size();
    args.numbers = reinterpret_cast<uint32_t*>(take(args.num_cells * sizeof(uint32_t)));
    args.order = reinterpret_cast<uint32_t*>(take(num_rows * sizeof(uint32_t)));
    args.brought = reinterpret_cast<BroughtRow*>(take(num_rows * sizeof(BroughtRow)));
    args.memory = take(args.capacity * args.stride);
    bytes = at;
  }
};

}  // namespace

int64_t RowCache::BytesFor(int64_t row_bytes, int64_t num_rows) {
  // A third more than the rows, as some sets are fuller than others.
  return SetBytes(row_bytes) * ((num_rows + num_rows / 3) / kCacheWays + 1);
}

RowCache::RowCache(const char* rows, int64_t row_bytes, int64_t bytes) {
  RequireCuda(cudaGetDevice(&device_));
  ref_.rows = rows;
  ref_.row_bytes = row_bytes;
  ref_.copy_bytes = CopyBytes(row_bytes);
  const int64_t num_sets = std::max<int64_t>(bytes / SetBytes(row_bytes), 1);
  ref_.num_sets = static_cast<uint64_t>(num_sets);
  int64_t at = 0;
  auto take = [&](int64_t size) {
    const int64_t taken = at;
    at += AlignScratch(size);
    return taken;
  };
  const int64_t copies = take(num_sets * kCacheWays * ref_.copy_bytes);
  const int64_t tags = take(num_sets * kCacheWays * static_cast<int64_t>(sizeof(uint64_t)));
  const int64_t notes = take(num_sets * kCacheNotes * static_cast<int64_t>(sizeof(int64_t)));
  const int64_t calls = take(num_sets * static_cast<int64_t>(sizeof(uint32_t)));
  const int64_t counts = take(kNumCounts * static_cast<int64_t>(sizeof(uint64_t)));
  bytes_ = at;
  memory_ = std::make_unique<DeviceBuffer<char>>(bytes_);
  char* const begin = memory_->data();
  ref_.copies = begin + copies;
  ref_.tags = reinterpret_cast<unsigned long long*>(begin + tags);
  ref_.notes = reinterpret_cast<int64_t*>(begin + notes);
  ref_.calls = reinterpret_cast<uint32_t*>(begin + calls);
  ref_.counts = reinterpret_cast<unsigned long long*>(begin + counts);
  RequireCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  RequireCuda(cudaMemsetAsync(ref_.counts, 0, kNumCounts * sizeof(uint64_t), stream_));
  ClearKernel<<<std::min(BlocksFor(num_sets), 4096u), kThreads, 0, stream_>>>(ref_);
  RequireCuda(cudaGetLastError());
  RequireCuda(cudaStreamSynchronize(stream_));
}

RowCache::~RowCache() {
  const OnDevice on_device(device_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void RowCache::Forget(const int64_t* rows, int64_t num_rows) {
  if (num_rows == 0 || is_broken_) return;
  const OnDevice on_device(device_);
  try {
    const DeviceBuffer<int64_t> forgotten(rows, num_rows, stream_);
    ForgetKernel<<<BlocksFor(num_rows), kThreads, 0, stream_>>>(ref_, forgotten.data(), num_rows);
    RequireCuda(cudaGetLastError());
    RequireCuda(cudaStreamSynchronize(stream_));
  } catch (const std::runtime_error&) {
    is_broken_ = true;
  }
}

RowCacheCounts RowCache::counts() const {
  const OnDevice on_device(device_);
  unsigned long long counts[kNumCounts] = {};
  cudaMemcpy(counts, ref_.counts, sizeof(counts), cudaMemcpyDeviceToHost);
  return {static_cast<int64_t>(counts[kFound]), static_cast<int64_t>(counts[kBrought]),
          static_cast<int64_t>(counts[kKept]),
          is_broken_ ? 0 : static_cast<int64_t>(ref_.num_sets) * kCacheWays};
}

CacheTurns::CacheTurns() { RequireCuda(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming)); }

CacheTurns::~CacheTurns() { cudaEventDestroy(last_); }

CacheTurns::Turn::Turn(CacheTurns* turns, cudaStream_t stream, cudaError_t* error)
    : turns_(turns), lock_(turns->mutex_), stream_(stream), call_(++turns->num_calls_) {
  const bool is_first = call_ == 1;
  *error = is_first || turns->last_stream_ == stream ? cudaSuccess
                                                     : cudaStreamWaitEvent(stream, turns->last_, 0);
}

CacheTurns::Turn::~Turn() {
  cudaEventRecord(turns_->last_, stream_);
  turns_->last_stream_ = stream_;
}

int64_t FetchedRows::Bytes(const std::vector<CachedRows>& requests, int64_t num_rows) {
  return requests.empty() ? 0 : Layout(requests, num_rows, nullptr).bytes;
}

cudaError_t FetchedRows::FindRows(int64_t* rows, cudaStream_t stream) {
  if (requests_.empty()) return cudaSuccess;
  Layout layout(requests_, num_rows_, memory_);
  if (layout.num_blocks == 0) return cudaSuccess;
  FetchArgs& args = layout.args;
  args.rows = rows;
  args.call = call_;
  if (const cudaError_t error = layout.arrays.Send(stream)) return error;
  if (const cudaError_t error = cudaMemsetAsync(args.keys, 0, layout.cleared_bytes, stream)) {
    return error;
  }
  FindRowsKernel<<<static_cast<unsigned>(layout.num_blocks), kThreads, 0, stream>>>(args);
  const unsigned list_blocks = BlocksForList(num_rows_);
  ScanBucketsKernel<<<1, kScanThreads, 0, stream>>>(args);
  OrderRowsKernel<<<list_blocks, kThreads, 0, stream>>>(args);
  BringRowsKernel<<<list_blocks, kThreads, 0, stream>>>(args);
  AddressRowsKernel<<<BlocksFor(num_rows_), kThreads, 0, stream>>>(args, num_rows_);
  return cudaGetLastError();
}

cudaError_t FetchedRows::KeepRows(cudaStream_t stream) {
  if (requests_.empty()) return cudaSuccess;
  Layout layout(requests_, num_rows_, memory_);
  if (layout.num_blocks == 0) return cudaSuccess;
  layout.args.call = call_;
  KeepRowsKernel<<<BlocksForList(layout.args.capacity), kThreads, 0, stream>>>(layout.args);
  return cudaGetLastError();
}

}  // namespace group_embedding
