// The rows that all ranks requested from this owner, as a batch (grouping/group_ids.h): one sample
// per requested row, with the row number as its only id.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "grouping/group_ids.h"

namespace group_embedding {

inline BatchLayout LayOutRequests(int64_t num_requests) {
  return LayOutBatch(num_requests, num_requests, /*weighted=*/true);
}

// Enqueues the write of row splits and weights, not of ids, to `buffer`,
// [LayOutRequests(num_requests).size]. weight: the weight of each id, by which its gradient is
// multiplied.
cudaError_t WriteRequestBatchCuda(int64_t num_requests, float weight, float* buffer,
                                  cudaStream_t stream);

}  // namespace group_embedding
