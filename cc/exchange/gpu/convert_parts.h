// Rows as they travel: of another element type than their table's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/group.h"

namespace group_embedding {

// Enqueues the conversion of the elements of parts (part_bytes.h) of so many bytes, by way of
// float32, where they are multiplied by `factor`. Both are aligned to 16 bytes, and what is between
// parts is converted with them.
cudaError_t ConvertPartsCuda(const void* from, DataType from_type, int64_t from_bytes, float factor,
                             void* to, DataType to_type, cudaStream_t stream);

}  // namespace group_embedding
