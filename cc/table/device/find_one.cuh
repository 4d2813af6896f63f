// The search of the index by one thread, where speed does not matter (find_slots.cuh).
#pragma once

#include "table/device/device_table_ref.cuh"

namespace group_embedding {

// A thread's own search: the key's slot, or null.
__device__ inline uint64_t* FindSlot(const DeviceTableRef& table, int64_t key, uint64_t* word) {
  const uint64_t hash = IndexRef::HashOf(key);
  const uint32_t tag = IndexRef::TagOf(hash);
  const IndexArea area = table.index.AreaOf(hash);
  for (uint64_t bucket = IndexRef::Home(area, hash);; bucket = IndexRef::Next(area, bucket)) {
    bool has_empty = false;
    for (int i = 0; i < kBucketSlots; ++i) {
      uint64_t* slot = table.index.Slot(bucket, i);
      *word = __ldcg(slot);
      has_empty |= *word == kEmptySlot;
      if (SlotWord::Tag(*word) != tag) continue;
      const int64_t number = SlotWord::Number(*word);
      const SlotKind kind = SlotWord::Kind(*word);
      if (kind == SlotKind::kRow && table.KeyOfRow(number) == key) return slot;
      if (kind == SlotKind::kCandidate && table.candidates[number].key == key) return slot;
    }
    if (has_empty) return nullptr;
  }
}

}  // namespace group_embedding
