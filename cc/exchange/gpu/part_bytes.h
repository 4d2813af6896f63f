// The layout of parts (route_rows.h) in a buffer: part after part, rows without gaps.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

// The bytes of a part, rounded up so that the next part is aligned as a tensor has to be.
inline constexpr int64_t kPartAlignment = 64;
GROUP_EMBEDDING_HOST_DEVICE int64_t PartBytes(int64_t num_rows, int64_t row_bytes) {
  return (num_rows * row_bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

}  // namespace group_embedding
