// Copies descriptors of thousands of tables or features to the device for one launch, and finds the
// one that a block works for.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace group_embedding {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullWarp = 0xFFFFFFFFu;
inline constexpr int64_t kScratchAlignment = 256;

inline int64_t AlignScratch(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// Copies several host arrays to the device in one transfer.
class DeviceArrays {
 public:
  // `device` may be null to learn the size.
  explicit DeviceArrays(void* device) : device_(static_cast<char*>(device)) {}

  // Returns where the array will be on the device.
  template <typename T>
  const T* Add(const std::vector<T>& array) {
    const int64_t at = size_;
    size_ += AlignScratch(static_cast<int64_t>(array.size() * sizeof(T)));
    host_.resize(size_);
    if (!array.empty()) std::memcpy(host_.data() + at, array.data(), array.size() * sizeof(T));
    return reinterpret_cast<const T*>(device_ + at);
  }

  int64_t size() const { return size_; }

  // From pageable memory CUDA stages a copy of at most 64 KB before it returns, so that the arrays
  // may go at once and nothing waits for the device. (In a captured graph they would have to stay.)
  cudaError_t Send(cudaStream_t stream) const {
    constexpr int64_t kPieceBytes = 64 << 10;
    for (int64_t at = 0; at < size_; at += kPieceBytes) {
      const cudaError_t error =
          cudaMemcpyAsync(device_ + at, host_.data() + at, std::min(kPieceBytes, size_ - at),
                          cudaMemcpyHostToDevice, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

 private:
  char* device_;
  std::vector<char> host_;
  int64_t size_ = 0;
};

// Which blocks work for which of several owners (features, tables): owner i has blocks
// [first_blocks[i], first_blocks[i + 1]).
class BlockPlan {
 public:
  void Append(int64_t num_blocks) { first_blocks_.push_back(first_blocks_.back() + num_blocks); }
  const std::vector<int64_t>& first_blocks() const { return first_blocks_; }
  int64_t num_blocks() const { return first_blocks_.back(); }

 private:
  std::vector<int64_t> first_blocks_ = {0};
};

#ifdef __CUDACC__
// The last i in [0, count) with starts[i] <= value; starts[0] <= value. All lanes of a warp call it
// with the same arguments and look at 32 candidates at a time: 2,000 take three loads.
__device__ inline int64_t FindOwner(const int64_t* starts, int64_t count, int64_t value) {
  const int lane = threadIdx.x % kWarpSize;
  int64_t begin = 0, end = count;
  while (end - begin > 1) {
    const int64_t step = (end - begin + kWarpSize - 1) / kWarpSize;
    const int64_t at = begin + lane * step;
    const unsigned votes = __ballot_sync(kFullWarp, at < end && starts[at] <= value);
    begin += (31 - __clz(votes)) * step;
    end = min(end, begin + step);
  }
  return begin;
}

// As FindOwner, by one thread, so that lanes may search for different items. start_of(i):
// starts[i].
template <typename Index, typename Value, typename StartOf>
__device__ __forceinline__ Index FindOwnerAlone(Index count, Value value, const StartOf& start_of) {
  Index begin = 0, end = count;
  while (end - begin > 1) {
    const Index middle = (begin + end) / 2;
    (start_of(middle) <= value ? begin : end) = middle;
  }
  return begin;
}
#endif

inline int64_t NumMultiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 1;
  }
  return count;
}

}  // namespace group_embedding
