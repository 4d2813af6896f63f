// The backward pass of a group fused with the update of its tables: output gradients -> updated
// rows. No row's gradient is written to memory. Results are the same bits on every run, and the
// same as those of the rule applied to the gradients of ReduceRows, since a row's gradient is
// rounded to the group's dtype first.
//
// It also applies a rule to other gradients, such as the indices and values of an IndexedSlices:
// they are a batch without row splits, in which each sample has one id.
#pragma once

#include <cstdint>

#include "fused/group_lookup.h"
#include "optimizer/update.h"

namespace group_embedding {

// A feature's `output` is its gradient; null if the feature has none: its ids are passed over, as
// are those of a table that stays as it is.
int64_t GroupUpdateWorkspaceBytes(const Group& group);
void GroupUpdateCpu(const Group& group, const Update& update, void* workspace,
                    const ParallelFor& parallel_for);

#if GROUP_EMBEDDING_CUDA
// As GroupUpdateCpu on the GPU: enqueues on `stream`, without synchronisation. workspace: device
// memory.
int64_t GroupUpdateWorkspaceBytesCuda(const Group& group);
cudaError_t GroupUpdateCuda(const Group& group, const Update& update, void* workspace,
                            cudaStream_t stream);
#endif

}  // namespace group_embedding
