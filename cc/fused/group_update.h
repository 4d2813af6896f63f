// The backward pass of a group fused with the update of its tables: output gradients -> updated
// rows. No gradient of a row is ever written to memory. The result is the same bits on every run,
// and the same as that of the rule applied to the gradients of ReduceRows, since a row's gradient
// is rounded to the group's dtype before the rule sees it.
//
// It also applies a rule to gradients that came another way, as the indices and values of an
// IndexedSlices: a batch without row splits, each sample the one id whose gradient it is.
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
// The same, enqueued on `stream`, without synchronisation. `workspace` is device memory.
int64_t GroupUpdateWorkspaceBytesCuda(const Group& group);
cudaError_t GroupUpdateCuda(const Group& group, const Update& update, void* workspace,
                            cudaStream_t stream);
#endif

}  // namespace group_embedding
