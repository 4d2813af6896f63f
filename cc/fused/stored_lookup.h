// GroupLookup of tables whose rows are stored in another type than they were trained in.
#pragma once

#include "core/row_format.h"
#include "fused/group_lookup.h"

namespace group_embedding {

// As GroupLookupCpu, which is the case of one format. formats: [num_tables], of the tables' rows.
// Rows are added in float32; outputs have the group's type.
Fault StoredLookupCpu(const Group& group, const RowFormat* formats,
                      const ParallelFor& parallel_for);

}  // namespace group_embedding
