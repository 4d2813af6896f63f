// Signals between kernels of different ranks of a host: words in peer memory.
//
// There is one word for each pair of ranks and each channel. To signal, a kernel writes the epoch,
// a growing number, into the word; a waiting kernel reads the word until it holds that epoch or a
// later one. All ranks use each channel in the same order.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

struct PeerSignals {
  static constexpr int kMaxRanks = 64;
  static constexpr int kNumChannels = 8;

  uint64_t* words[kMaxRanks];  // of each rank, in this rank's address space: [kNumChannels,
                               // num_ranks]
  int rank, num_ranks;
  uint64_t epoch;

  static int64_t BytesOf(int num_ranks) { return 8 * int64_t{kNumChannels} * num_ranks; }

#ifdef __CUDACC__
  // Signals rank `peer`. A thread of that rank that sees the signal also sees all writes that this
  // thread made or saw before, and all writes of earlier kernels.
  __device__ void Signal(int peer, int channel) const {
    __threadfence_system();
    asm volatile(
        "st.release.sys.global.u64 [%0], %1;" ::"l"(words[peer] + channel * num_ranks + rank),
        "l"(epoch)
        : "memory");
  }

  __device__ bool HasSignalled(int peer, int channel) const {
    uint64_t seen;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(seen)
                 : "l"(words[rank] + channel * num_ranks + peer)
                 : "memory");
    return seen >= epoch;
  }
#endif
};

}  // namespace group_embedding
