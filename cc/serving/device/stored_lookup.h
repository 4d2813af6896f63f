// GroupLookup of tables whose rows are stored in another type than they were trained in.
#pragma once

#include "core/row_format.h"
#include "fused/group_lookup.h"

namespace group_embedding {

// As GroupLookupCpu. formats: [num_tables], of the tables' rows. Rows are added in float32; outputs
// have the group's type.
Fault StoredLookupCpu(const Group& group, const RowFormat* formats,
                      const ParallelFor& parallel_for);

#if GROUP_EMBEDDING_CUDA
// Enqueues a launch for each format that tables have. Ids have been checked: there is no fault.
// Tables of another format than the group's dtype are looked up by address, as those with null
// `rows` in group_lookup.h; their rows are aligned as in an array of such rows. scratch: device
// memory of StoredLookupScratchBytes.
int64_t StoredLookupScratchBytes(const Group& group);
cudaError_t StoredLookupCuda(const Group& group, const RowFormat* formats, void* scratch,
                             cudaStream_t stream);
#endif

}  // namespace group_embedding
