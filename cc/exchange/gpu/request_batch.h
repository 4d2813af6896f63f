// The rows that all ranks ask one for, as a batch (grouping/group_ids.h): a sample for each, with
// that one id.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "grouping/group_ids.h"

namespace group_embedding {

inline BatchLayout LayOutRequests(int64_t num_requests) {
  return LayOutBatch(num_requests, num_requests, /*weighted=*/true);
}

// Enqueues the write of all but the ids to `buffer`, [LayOutRequests(num_requests).size]; `weight`
// is that of each id: what its gradient is multiplied by.
cudaError_t WriteRequestBatchCuda(int64_t num_requests, float weight, float* buffer,
                                  cudaStream_t stream);

}  // namespace group_embedding
