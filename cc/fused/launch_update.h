// The kernels that sum and apply the gradients of sorted rows of one type.
#pragma once

#include <cuda_runtime.h>

#include "fused/group_update.h"
#include "fused/sort_rows.h"

namespace group_embedding {

// scratch: of ReduceScratchBytes. Defined in launch_update.cuh, for each type in a file of its own,
// as each takes long to compile.
template <typename T>
cudaError_t LaunchUpdate(const Group& group, const SortedRows& sorted, const Update& update,
                         void* scratch, cudaStream_t stream);

}  // namespace group_embedding
