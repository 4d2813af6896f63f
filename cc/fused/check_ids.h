// Looks for bad ids before any table is read or changed: keyed tables insert and count keys as they
// are located, which is before the lookup of the group would find a bad id of another table.
#pragma once

#include <cstdint>

#include "core/fault.h"
#include "core/group.h"
#include "core/parallel.h"

namespace group_embedding {

// The number of rows of a table whose ids are not checked, as any is one of a keyed table.
inline constexpr int64_t kNotChecked = -1;

// The first bad id, by feature and then by sample, or no fault. Row splits have been checked.
// features: [num_features]; num_rows: per table, or kNotChecked.
Fault CheckIds(const Batch& batch, const Feature* features, int64_t num_features,
               const int64_t* num_rows, bool prune_negative, const ParallelFor& parallel_for);

}  // namespace group_embedding
