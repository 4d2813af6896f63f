// Finds out, for many gradient arrays in one pass, whether any number is infinite or NaN.
#pragma once

#include <cstdint>

#include "core/group.h"
#include "core/parallel.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>
#endif

namespace group_embedding {

// An array of numbers, aligned as its type. Null: empty.
struct Numbers {
  const void* values;  // [count]
  int64_t count;
  DataType dtype;
};

// The bits of a number's exponent, all of which are set where it is infinite or NaN. In a word of
// 32 bits: those of one number of 32 or two of 16.
inline uint32_t ExponentBits(DataType dtype) {
  if (dtype == DataType::kFloat32) return 0x7F800000u;
  return dtype == DataType::kFloat16 ? 0x7C007C00u : 0x7F807F80u;
}

// 0, or NaN where a number of any array is infinite or NaN.
float OverflowCpu(const Numbers* arrays, int64_t num_arrays, const ParallelFor& parallel_for);

#if GROUP_EMBEDDING_CUDA
// As HasOverflowCpu for arrays and a result on the device. Enqueues on `stream` and returns.
// scratch: device memory of at least OverflowScratchBytesCuda.
int64_t OverflowScratchBytesCuda(const Numbers* arrays, int64_t num_arrays);
cudaError_t OverflowCuda(const Numbers* arrays, int64_t num_arrays, void* scratch, float* overflow,
                         cudaStream_t stream);
#endif

}  // namespace group_embedding
