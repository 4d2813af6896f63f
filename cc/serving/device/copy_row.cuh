// A warp copies one row.
#pragma once

#include "core/descriptors.cuh"

namespace group_embedding {

// `bytes` from one aligned address to another, with several loads in flight.
template <typename Word>
__device__ void CopyWords(const char* from, char* to, int64_t bytes, int lane) {
  constexpr int kAtOnce = 4;
  const auto* words = reinterpret_cast<const Word*>(from);
  const int64_t count = bytes / sizeof(Word);
  for (int64_t w = lane; w < count; w += kWarpSize * kAtOnce) {
    Word loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (w + k * kWarpSize < count) loaded[k] = words[w + k * kWarpSize];
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (w + k * kWarpSize < count) reinterpret_cast<Word*>(to)[w + k * kWarpSize] = loaded[k];
    }
  }
}
// Both addresses are multiples of 16 where `bytes` is, or of 4 where `bytes` is.
__device__ inline void CopyRow(const char* from, char* to, int64_t bytes, int lane) {
  if (bytes % 16 == 0) return CopyWords<uint4>(from, to, bytes, lane);
  if (bytes % 4 == 0) return CopyWords<unsigned>(from, to, bytes, lane);
  CopyWords<unsigned char>(from, to, bytes, lane);
}

}  // namespace group_embedding
