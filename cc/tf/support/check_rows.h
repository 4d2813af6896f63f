// Checks that the entries of a group can be sorted on the host.
#pragma once

#include <string>

#include "fused/sort_rows.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {

inline absl::Status CheckRows(const Group& group) {
  const int64_t max_rows = RowSorter::MaxRows(group);
  for (int64_t t = 0; t < group.num_tables; ++t) {
    if (group.tables[t].num_rows <= max_rows) continue;
    return absl::InvalidArgumentError(
        "expected tables of at most " + std::to_string(max_rows) + " rows in a batch of " +
        std::to_string(group.batch.num_ids) + " ids, got one of " +
        std::to_string(group.tables[t].num_rows) + "; split the batch");
  }
  return absl::OkStatus();
}

}  // namespace group_embedding
