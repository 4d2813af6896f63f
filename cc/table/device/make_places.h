// Makes places for the new keys of a call in a table with a budget (table/budget.h), on the device
// alone: the host waits for nothing.
#pragma once

#include <cuda_runtime_api.h>

#include "table/budget.h"

namespace group_embedding {

struct LocateArgs;
struct PlacesState;

// What a call does in a table with a budget.
struct PlacesArgs {
  int64_t table;  // its number in the call
  int64_t max_keys, low_keys;
  EvictFirst first;
  int64_t held_from;   // keys trained by calls from that on stay
  int64_t reuse_from;  // rows that lost their keys from that on may be held by other batches
  PlacesState* state;
  int64_t num_blocks;           // of the launch, for which
  int64_t* num_free_of_blocks;  // [num_blocks]
  int64_t* num_gone_of_blocks;  // [num_blocks]
  // A bit per row: whether it has the score of the last one that goes, is free, has lost its key.
  uint32_t *tied, *free, *gone;
  int64_t max_free;  // rows for which the table's list of free rows has space
  int64_t* evicted;  // [evicted_size] the last keys that went: the n-th in place n % evicted_size
  int64_t evicted_size;
};

// Before rows are given: evicts if the call's new keys would exceed the budget, lists the free rows
// anew, and takes rows from those new keys for which there is no place (gets_row).
cudaError_t MakePlaces(const LocateArgs& args, PlacesArgs places, cudaStream_t stream);

// How many blocks the launch has at most, on the current device.
int64_t NumPlacesBlocks();

}  // namespace group_embedding
