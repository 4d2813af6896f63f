// Checks of a table's options and inputs, before memory is read or allocated by them.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"
#include "table/embedding_table.h"

namespace group_embedding {

inline constexpr int32_t kMaxTableDim = 4096;
inline constexpr int64_t kMaxTierBytes = int64_t{1} << 60;

// What MakeHostTable, and whatever else makes a table, can make one of.
Status CheckOptions(const TableOptions& options);
// The size of a tier: 0 or more.
Status CheckTierBytes(const TableOptions& options, int64_t bytes);
// The error of a budget of bytes in which a table, or a rank's part of one, has not a key for each
// share. enough: the bytes with which it has. without_keys: those that it takes without a key.
Status TooFewBytes(const Budget& budget, int64_t enough, int64_t without_keys);
// What Insert can give to keys: no count is negative.
Status CheckCounts(const TableOptions& options, const KeyedRowsView& rows);

}  // namespace group_embedding
