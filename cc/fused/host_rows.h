// Rows in host memory that a lookup on a GPU reads: each of them crosses the bus once, in ascending
// order, into device memory, from which the lookup then reads.
//
// Read in place, a row would cross the bus once for each of its ids, and in the order of the batch,
// in which the bus is several times slower than in ascending order.
#pragma once

#include "fused/group_lookup.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/fault.h"

namespace group_embedding {

// Whether a lookup of the group fetches rows: a table has rows in host memory, and the batch is
// large enough to be worth a sort.
bool FetchesHostRows(const Group& group);

int64_t FetchHostRowsScratchBytes(const Group& group);

// Enqueues the fetch. by_address: receives the group with addresses of rows instead of ids, which
// borrows `tables` and `scratch`. scratch: device memory of FetchHostRowsScratchBytes. fault: as
// for GroupLookupCuda, for which nothing is left to report.
cudaError_t FetchHostRowsCuda(const Group& group, void* scratch, Fault* fault,
                              std::vector<Table>* tables, Group* by_address, cudaStream_t stream);

}  // namespace group_embedding
#endif
