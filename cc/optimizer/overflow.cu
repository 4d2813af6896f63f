#include <vector>

#include "core/descriptors.cuh"
#include "optimizer/overflow.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWordBytes = sizeof(uint4);
constexpr int64_t kWordsOfThread = 8;  // loads in flight
constexpr int64_t kWordsOfBlock = kThreads * kWordsOfThread;

// An array in words of 16 bytes, from the last boundary before it on: of the first and of the last
// word it may have but a part.
struct WordsOfNumbers {
  const char* begin;
  const char* end;
  const uint4* words;
  int64_t num_words;
  uint32_t exponent;  // see ExponentBits
};

struct OverflowArgs {
  const WordsOfNumbers* arrays;  // [num_arrays]
  const int64_t* first_blocks;   // [num_arrays + 1]
  int64_t num_arrays;
  float* overflow;
};

__device__ __forceinline__ bool HasOverflow(uint32_t bits, uint32_t exponent) {
  const uint32_t zeros = ~bits & exponent;  // of the exponents' bits
  const bool is_wide = exponent == 0x7F800000u;
  return is_wide ? zeros == 0 : (zeros & 0xFFFFu) == 0 || (zeros >> 16) == 0;
}

// Reads a 16-byte word that may lie partly outside of the array: bytes outside are zeros.
__device__ uint4 PartOf(const WordsOfNumbers& array, const uint4* word) {
  uint16_t halves[kWordBytes / 2] = {};
  const uint16_t* from = reinterpret_cast<const uint16_t*>(word);
#pragma unroll
  for (int i = 0; i < kWordBytes / 2; ++i) {
    const char* at = reinterpret_cast<const char*>(from + i);
    if (at >= array.begin && at < array.end) halves[i] = from[i];
  }
  const auto pair = [&](int i) { return uint32_t{halves[i]} | uint32_t{halves[i + 1]} << 16; };
  return {pair(0), pair(2), pair(4), pair(6)};
}

// A block works for one array, and reads up to 32 KB of it.
__global__ void __launch_bounds__(kThreads)
    FindOverflowKernel(const __grid_constant__ OverflowArgs args) {
  const int64_t a = FindOwner(args.first_blocks, args.num_arrays, blockIdx.x);
  const WordsOfNumbers array = args.arrays[a];
  const int64_t first = (blockIdx.x - args.first_blocks[a]) * kWordsOfBlock + threadIdx.x;
  uint4 words[kWordsOfThread];
#pragma unroll
  for (int i = 0; i < kWordsOfThread; ++i) {
    const int64_t at = first + i * kThreads;
    const uint4* word = array.words + at;
    const char* begin = reinterpret_cast<const char*>(word);
    const bool is_whole = begin >= array.begin && begin + kWordBytes <= array.end;
    words[i] = {};
    if (is_whole) words[i] = __ldcs(word);  // each is read once
    if (!is_whole && at < array.num_words) words[i] = PartOf(array, word);
  }
  bool found = false;
#pragma unroll
  for (int i = 0; i < kWordsOfThread; ++i) {
    found |= HasOverflow(words[i].x, array.exponent) || HasOverflow(words[i].y, array.exponent) ||
             HasOverflow(words[i].z, array.exponent) || HasOverflow(words[i].w, array.exponent);
  }
  if (found)
    *args.overflow = __int_as_float(0x7FC00000);  // all threads that find one write the same value
}

class OverflowPlan {
 public:
  OverflowPlan(const Numbers* arrays, int64_t num_arrays, void* scratch) : device_(scratch) {
    std::vector<WordsOfNumbers> all;
    BlockPlan blocks;
    for (int64_t a = 0; a < num_arrays; ++a) {
      const char* begin = static_cast<const char*>(arrays[a].values);
      const char* end = begin + arrays[a].count * SizeOf(arrays[a].dtype);
      const char* aligned = begin - reinterpret_cast<uintptr_t>(begin) % kWordBytes;
      const int64_t num_words = (end - aligned + kWordBytes - 1) / kWordBytes;
      all.push_back({begin, end, reinterpret_cast<const uint4*>(aligned), num_words,
                     ExponentBits(arrays[a].dtype)});
      blocks.Append(begin == end ? 0 : (num_words + kWordsOfBlock - 1) / kWordsOfBlock);
    }
    args_ = {device_.Add(all), device_.Add(blocks.first_blocks()), num_arrays, nullptr};
    num_blocks_ = blocks.num_blocks();
  }

  int64_t scratch_bytes() const { return device_.size(); }

  cudaError_t Run(float* overflow, cudaStream_t stream) {
    cudaError_t error = cudaMemsetAsync(overflow, 0, sizeof(float), stream);
    if (error != cudaSuccess || num_blocks_ == 0) return error;
    if (num_blocks_ > INT32_MAX) return cudaErrorInvalidConfiguration;
    error = device_.Send(stream);
    if (error != cudaSuccess) return error;
    args_.overflow = overflow;
    FindOverflowKernel<<<static_cast<unsigned>(num_blocks_), kThreads, 0, stream>>>(args_);
    return cudaGetLastError();
  }

 private:
  DeviceArrays device_;
  OverflowArgs args_;
  int64_t num_blocks_;
};

}  // namespace

int64_t OverflowScratchBytesCuda(const Numbers* arrays, int64_t num_arrays) {
  return OverflowPlan(arrays, num_arrays, nullptr).scratch_bytes();
}

cudaError_t OverflowCuda(const Numbers* arrays, int64_t num_arrays, void* scratch, float* overflow,
                         cudaStream_t stream) {
  return OverflowPlan(arrays, num_arrays, scratch).Run(overflow, stream);
}

}  // namespace group_embedding
