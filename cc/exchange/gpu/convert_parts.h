// Conversion of rows between the element type of their table and the type in which they are sent.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/group.h"

namespace group_embedding {

// Enqueues the conversion of `from_bytes` bytes of parts (part_bytes.h). Each element becomes a
// float32, is multiplied by `factor` and is rounded to `to_type`. Both buffers are aligned to 16
// bytes; the padding between parts is converted as well.
cudaError_t ConvertPartsCuda(const void* from, DataType from_type, int64_t from_bytes, float factor,
                             void* to, DataType to_type, cudaStream_t stream);

}  // namespace group_embedding
