// How the rows of parts lie in a buffer: part after part, rows without gaps.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

// Bytes that a part takes: the next one begins at a multiple of 16.
GROUP_EMBEDDING_HOST_DEVICE int64_t PartBytes(int64_t num_rows, int64_t row_bytes) {
  return (num_rows * row_bytes + 15) / 16 * 16;
}

}  // namespace group_embedding
