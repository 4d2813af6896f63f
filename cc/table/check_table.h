// What a table is made of and given, checked before memory is read or taken by it.
//
// Functions return an error in words, or nothing.
#pragma once

#include <cstdint>
#include <string>

#include "table/embedding_table.h"

namespace group_embedding {

inline constexpr int32_t kMaxTableDim = 4096;
inline constexpr int64_t kMaxTierBytes = int64_t{1} << 60;

// What MakeHostTable, and whatever else makes a table, can make one of.
std::string CheckOptions(const TableOptions& options);
// The size of a tier: 0 or more.
std::string CheckTierBytes(const TableOptions& options, int64_t bytes);
// What Insert can give to keys: no count is negative.
std::string CheckCounts(const TableOptions& options, const KeyedRowsView& rows);

}  // namespace group_embedding
