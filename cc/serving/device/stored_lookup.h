// StoredLookupCpu on a GPU.
#pragma once

#include "fused/stored_lookup.h"

#if GROUP_EMBEDDING_CUDA

namespace group_embedding {

// Enqueues a launch for each format that tables have. Ids have been checked: there is no fault.
// Tables of another format than the group's dtype are looked up by address, as those with null
// `rows` in group_lookup.h; their rows are aligned as in an array of such rows. scratch: device
// memory of StoredLookupScratchBytes.
int64_t StoredLookupScratchBytes(const Group& group);
cudaError_t StoredLookupCuda(const Group& group, const RowFormat* formats, void* scratch,
                             cudaStream_t stream);

}  // namespace group_embedding

#endif
