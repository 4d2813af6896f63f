// The shares of a table's budget, as kernels see them.
#pragma once

#include "core/descriptors.cuh"
#include "core/owner.h"
#include "table/device/make_places.h"

namespace group_embedding {

inline constexpr int64_t kAnyShare = -1;

// The table's number of the share of a key.
__device__ inline int64_t ShareOf(const BudgetShares& shares, int64_t key) {
  return shares.count > 1 ? OwnerOfKey(key, shares.of_all_ranks) - shares.first : 0;
}

// Adds the threads with `is_one` to the counts of their shares; a warp calls it together.
__device__ inline void AddToShare(unsigned long long* of_shares, int64_t share, bool is_one) {
  const unsigned peers = __match_any_sync(kFullWarp, is_one ? share : kAnyShare);
  const bool is_first = __ffs(peers) - 1 == static_cast<int>(threadIdx.x % kWarpSize);
  if (is_one && is_first) {
    atomicAdd(&of_shares[share], static_cast<unsigned long long>(__popc(peers)));
  }
}

}  // namespace group_embedding
