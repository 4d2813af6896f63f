// Copies blocks of columns between matrices, or adds them: a rank's columns of an output, or of its
// gradient, are a block by themselves on the way between ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/group.h"

namespace group_embedding {

struct ColumnBlock {
  const void* from;  // row i is at from + i * from_stride; null: zeros
  int64_t from_stride;
  void* to;
  int64_t to_stride;  // strides are in elements
  int64_t num_rows;
  int32_t dim;                         // columns
  bool adds = false;                   // `to` is added before it is written
  const float* row_factors = nullptr;  // [num_rows] what each row is multiplied by; null: 1
};

// Enqueues the copy of `blocks`, their elements multiplied by `factor` and converted. Blocks do not
// overlap. scratch: device memory of MoveColumnsScratchBytes.
int64_t MoveColumnsScratchBytes(int64_t num_blocks);
cudaError_t MoveColumnsCuda(const std::vector<ColumnBlock>& blocks, DataType from_type,
                            DataType to_type, float factor, void* scratch, cudaStream_t stream);

}  // namespace group_embedding
