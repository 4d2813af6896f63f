// Where keys are in the order of eviction, by rows in host memory that no table has.
#pragma once

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

}  // namespace group_embedding
