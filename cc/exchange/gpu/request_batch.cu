#include "exchange/gpu/request_batch.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;

// A thread writes one row split, and one weight.
__global__ void __launch_bounds__(kThreads)
    WriteRequestBatchKernel(int64_t num_requests, float weight, int64_t* row_splits,
                            float* weights) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i <= num_requests) row_splits[i] = i;
  if (i < num_requests) weights[i] = weight;
}

}  // namespace

cudaError_t WriteRequestBatchCuda(int64_t num_requests, float weight, float* buffer,
                                  cudaStream_t stream) {
  const int64_t num_blocks = num_requests / kThreads + 1;
  if (num_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  WriteRequestBatchKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(
      num_requests, weight, reinterpret_cast<int64_t*>(buffer),
      buffer + LayOutRequests(num_requests).weights);
  return cudaGetLastError();
}

}  // namespace group_embedding
