// Makes places for the new keys of a call in a table with a budget (table/budget.h), on the device
// alone: the host waits for nothing.
#pragma once

#include <cuda_runtime_api.h>

#include "table/budget.h"

namespace group_embedding {

struct LocateArgs;
struct PlacesState;

// How many keys a share of the budget may have, and how many an eviction for no new key leaves.
struct ShareLimit {
  int64_t max_keys, low_keys;
};

// The shares of the budget of all ranks that a table has; or its one budget.
struct BudgetShares {
  int64_t count, first, of_all_ranks;
  const ShareLimit* limits;  // [count], in device memory
};

// What a call does in a table with a budget. All arrays are in device memory.
struct PlacesArgs {
  int64_t table;  // its number in the call
  EvictFirst first;
  int64_t decay_steps, safe_steps;
  BudgetShares shares;
  unsigned long long* new_of_share;   // [shares.count] of the call
  unsigned long long* gone_of_share;  // [shares.count] of the call
  int64_t* keys_of_share;             // [shares.count] where there are several, from call to call
  bool halves_counts;  // there may be more counts of keys without a row than the budget has keys
  bool lends;          // rows to keys without a place
  int64_t held_from;   // keys trained by calls from that on stay, and rows that they have lent
  int64_t reuse_from;  // rows that lost their keys from that on may be held by other batches
  PlacesState* state;
  int64_t num_blocks;           // of the launch, for which
  int64_t* num_free_of_blocks;  // [num_blocks]
  int64_t* num_gone_of_blocks;  // [num_blocks]
  // A bit per row: whether it has the score of the last one that goes, is free, has lost its key.
  uint32_t *tied, *free, *gone;
  int64_t max_free;  // rows for which the table's list of free rows has space
  // The last keys that went: the n-th in place n % evicted_size.
  int64_t evicted_size;
  int64_t* evicted;                            // [evicted_size]
  int64_t *evicted_counts, *evicted_versions;  // [evicted_size]; null: keys are not handed out
  char* evicted_rows;                          // [evicted_size, dim]; null: rows are not
};

// Before rows are given: evicts if the call's new keys would exceed the budget, lists the free rows
// anew, and takes rows from those new keys for which there is no place (gets_row).
cudaError_t MakePlaces(const LocateArgs& args, PlacesArgs places, cudaStream_t stream);

// How many blocks the launch has at most, on the current device.
int64_t NumPlacesBlocks();

}  // namespace group_embedding
