// Launch configuration of kernels with one thread per row or key.
#pragma once

#include <cstdint>

namespace group_embedding {

constexpr int kThreads = 256;  // of a block

// Blocks with a thread for each of `count` things.
inline unsigned BlocksFor(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

// Which one this thread has; of the last block some have none.
__device__ inline int64_t ThreadIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

}  // namespace group_embedding
