// Given rows, completed by the counts and versions that the table has of their keys, or fewer.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "table/embedding_table.h"

namespace group_embedding {

// Appends the counts and versions that keys have after an Insert without counts and versions.
Status AppendCounts(const EmbeddingTable& table, const int64_t* keys, int64_t num_keys,
                    std::vector<int64_t>* counts, std::vector<int64_t>* versions);

// Copies the arguments of Insert, with counts and versions, for tables that insert step by step.
Status CompleteRows(const EmbeddingTable& table, const KeyedRowsView& given, KeyedRows* rows);

// Drops the rows of those keys.
void DropRows(const std::unordered_set<int64_t>& keys, KeyedRows* rows);

}  // namespace group_embedding
