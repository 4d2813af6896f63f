// The addresses of a sorted batch's rows: from unique rows to ids.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fused/group_lookup_grad.h"

namespace group_embedding {

// Enqueues the write of the address of each id that has a gradient or a row to fetch, which is an
// entry of `sorted`. positions: [num_ids] of each sorted entry, in the batch. unique_addresses:
// [num_unique]. num_tables: of all owners.
cudaError_t ScatterAddressesCuda(const SortedRows& sorted, int64_t num_tables, int64_t num_ids,
                                 const uint32_t* positions, const int64_t* unique_addresses,
                                 int64_t* id_addresses, cudaStream_t stream);

#ifdef __CUDACC__
// The key of a sorted entry.
__device__ inline int64_t KeyAt(const SortedRows& sorted, int64_t entry) {
  return sorted.has_wide_keys
             ? static_cast<int64_t>(static_cast<const uint64_t*>(sorted.keys)[entry])
             : static_cast<int64_t>(static_cast<const uint32_t*>(sorted.keys)[entry]);
}
#endif

}  // namespace group_embedding
