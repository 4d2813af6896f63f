#include <algorithm>

#include "core/descriptors.cuh"
#include "serving/device/fetched_rows.cuh"

namespace group_embedding {
namespace {

constexpr int64_t kMostPrefetchedBytes = int64_t{256} << 20;  // a call; others are read in place

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
    args.capacity = std::min(num_rows, kMostPrefetchedBytes / std::max<int64_t>(args.stride, 1));
    char* const begin = static_cast<char*>(memory);
    int64_t at = arrays.size();
    auto take = [&](int64_t size) {
      char* taken = begin + at;
      at += AlignScratch(size);
      return taken;
    };
    // Cleared together.
    args.keys = reinterpret_cast<unsigned long long*>(take(args.num_cells * sizeof(*args.keys)));
    args.num_prefetched = reinterpret_cast<uint32_t*>(take(sizeof(uint32_t)));
    args.buckets = reinterpret_cast<uint32_t*>(take(kNumBuckets * sizeof(uint32_t)));
    cleared_bytes = at - arrays.size();
    args.numbers = reinterpret_cast<uint32_t*>(take(args.num_cells * sizeof(uint32_t)));
    args.order = reinterpret_cast<uint32_t*>(take(num_rows * sizeof(uint32_t)));
    args.brought = reinterpret_cast<PrefetchedRow*>(take(num_rows * sizeof(PrefetchedRow)));
    args.memory = take(args.capacity * args.stride);
    bytes = at;
  }
};

}  // namespace

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
  PrefetchRowsKernel<<<list_blocks, kThreads, 0, stream>>>(args);
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
