// CRC-32C (Castagnoli), the checksum of every file of keyed tables: it finds any one flipped bit
// and any run of up to 32, whatever the length.
#pragma once

#include <cstddef>
#include <cstdint>

namespace group_embedding {

// Extends a checksum: returns that of the earlier bytes, whose checksum is `crc`, followed by
// `data`. The checksum of no bytes is 0.
uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes);

}  // namespace group_embedding
