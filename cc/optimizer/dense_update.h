// Applies a program (dense_program.h) to many variables in one call.
#pragma once

#include <cstdint>

#include "core/group.h"
#include "core/parallel.h"
#include "optimizer/dense_program.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>
#endif

namespace group_embedding {

// numbers: float32 [program.num_numbers], each a number that `dtype` holds exactly.
// variables: of one dtype; no memory that is written comes twice.
void DenseUpdateCpu(const DenseProgram& program, DataType dtype, const float* numbers,
                    const DenseVariable* variables, int64_t num_variables,
                    const ParallelFor& parallel_for);

#if GROUP_EMBEDDING_CUDA
// As DenseUpdateCpu for memory of the device, numbers included; `variables` is in host memory.
// Enqueues on `stream` and returns.
cudaError_t DenseUpdateCuda(const DenseProgram& program, DataType dtype, const float* numbers,
                            const DenseVariable* variables, int64_t num_variables,
                            cudaStream_t stream);
#endif

}  // namespace group_embedding
