// Where keys are in the order of eviction, by rows in host memory that no table has.
#pragma once

#include <unordered_map>
#include <vector>

#include "table/keyed_rows.h"
#include "table/table_options.h"

namespace group_embedding {

// The place of each key of `rows` as of a step.
//
// score_slot: where rows.slots have kScoreSlot or kTimeSlot; -1: the order needs none. Without that
// slot scores are 0. rows.values may be empty, but for EvictFirst::kSmallestNorm.
std::vector<EvictionOrder> OrderOfRows(const TableOptions& options, int64_t step,
                                       const KeyedRows& rows, int score_slot);

// The score of each key that is given one, the highest where a key comes several times.
std::unordered_map<int64_t, float> HighestScores(const int64_t* keys, int64_t num_keys,
                                                 const float* scores);

}  // namespace group_embedding
