// How the rows of parts lie in a buffer: part after part, rows without gaps.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

// Bytes that a part takes: the next one begins where a tensor may.
inline constexpr int64_t kPartAlignment = 64;
GROUP_EMBEDDING_HOST_DEVICE int64_t PartBytes(int64_t num_rows, int64_t row_bytes) {
  return (num_rows * row_bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

}  // namespace group_embedding
