// Words in the memory of every rank of a host, by which kernels tell those of other ranks that they
// have come so far.
//
// There is a word for each pair of ranks and channel. Who tells writes a number into it that grows,
// the epoch; who waits does so until it is there. Each channel is told and waited for in the same
// order on all ranks.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

struct PeerSignals {
  static constexpr int kMaxRanks = 64;
  static constexpr int kNumChannels = 8;

  uint64_t* words[kMaxRanks];  // of each rank, as this one sees it: [kNumChannels, num_ranks]
  int rank, num_ranks;
  uint64_t epoch;

  static int64_t BytesOf(int num_ranks) { return 8 * int64_t{kNumChannels} * num_ranks; }

#ifdef __CUDACC__
  // What the thread has written, or seen written, by now, and what was written by kernels that came
  // before its own, that rank sees once it sees the epoch.
  __device__ void Tell(int peer, int channel) const {
    __threadfence_system();
    asm volatile(
        "st.release.sys.global.u64 [%0], %1;" ::"l"(words[peer] + channel * num_ranks + rank),
        "l"(epoch)
        : "memory");
  }

  __device__ bool HasTold(int peer, int channel) const {
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
