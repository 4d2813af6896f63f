// PackedInfo: what is kept of a row beside its values, in 16 bytes; RowInfos unpacks it.
#pragma once

#include <cstdint>

namespace group_embedding {

// The hash of a key, always the same.
using HashOfKey = uint64_t (*)(int64_t key);

struct PackedInfo {
  int64_t key;
  uint32_t version;  // + 1; kWideVersion: in another array
  uint16_t count;    // kWideCount: in WideCounts
  uint16_t clock;    // RowClocks; kNoKey: the row belongs to no key

  static constexpr uint32_t kWideVersion = UINT32_MAX;
  static constexpr uint16_t kWideCount = UINT16_MAX, kNoKey = 0;
};
static_assert(sizeof(PackedInfo) == 16);

}  // namespace group_embedding
