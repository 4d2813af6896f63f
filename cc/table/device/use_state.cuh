// What stays on the device of a table's counts (device_use.h), from one call to the next.
#pragma once

#include "table/device/device_table_ref.cuh"
#include "table/device/found_counts.h"

namespace group_embedding {

// The keys of one part of the table in one call.
struct PartSample {
  unsigned long long num_ids, num_keys;  // ids, and different keys
  unsigned long long most;               // ids of one key
  unsigned long long call_ids;           // of all parts
};

struct UseState {
  static constexpr int kNumParts = 64;

  FoundCounts found;                // by calls that did not look for rows below memory
  FoundCounts found_after;          // by the others, after rows moved up
  FoundCounts found_before;         // by the last of these alone, before
  unsigned long long num_admitted;  // keys that got a row as they were trained
  PartSample samples[kNumParts];
};

// Counts the ids of a block with a row, which are of one table. All threads call it.
__device__ inline void CountByTier(const DeviceTableRef& table, int64_t row) {
  if (table.found == nullptr) return;
  const int num_found = __syncthreads_count(row >= 0);
  const MovesRef& moves = table.moves;
  const int num_below = moves.uses == nullptr ? 0 : __syncthreads_count(row >= moves.device_rows);
  if (threadIdx.x != 0) return;
  const auto num_first = static_cast<unsigned long long>(num_found - num_below);
  if (num_first > 0) atomicAdd(&table.found->in_first, num_first);
  if (num_below > 0) atomicAdd(&table.found->below, static_cast<unsigned long long>(num_below));
}

}  // namespace group_embedding
