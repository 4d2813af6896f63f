#include <algorithm>
#include <stdexcept>

#include "serving/device/row_cache.cuh"
#include "serving/device/row_cache.h"

namespace group_embedding {
namespace {

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

int64_t SetBytes(int64_t row_bytes) {
  return kCacheWays * (CopyBytes(row_bytes) + static_cast<int64_t>(sizeof(uint64_t))) +
         kCacheNotes * static_cast<int64_t>(sizeof(int64_t)) +
         static_cast<int64_t>(sizeof(uint32_t));
}

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
  return {static_cast<int64_t>(counts[kFound]), static_cast<int64_t>(counts[kPrefetched]),
          static_cast<int64_t>(counts[kKept]),
          is_broken_ ? 0 : static_cast<int64_t>(ref_.num_sets) * kCacheWays};
}

}  // namespace group_embedding
