// key -> a number, by open addressing with linear probing: one line of memory serves most keys.
//
// Entries are 16 bytes, a free one is all zeros, so every key is legal. Not thread-safe; its owner
// has the lock (a shard of a table has one index).
#pragma once

#include <cstdint>

#include "table/zeroed_memory.h"

namespace group_embedding {

class KeyIndex {
 public:
  struct Entry {
    int64_t key;
    int64_t state;  // not 0; what it means is the owner's
  };

  // Grows when more than `max_load` of it is taken.
  explicit KeyIndex(float max_load) : max_load_(max_load) { Resize(kLeastCapacity); }

  int64_t size() const { return size_; }
  int64_t capacity() const { return mask_ + 1; }
  int64_t bytes() const { return capacity() * static_cast<int64_t>(sizeof(Entry)); }

  void Prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[hash & mask_], 0, 3); }

  // The key's entry, or null. `hash`: of the key, always the same; its low bits are used. An entry
  // stays where it is until the next FindOrInsert or Erase.
  Entry* Find(int64_t key, uint64_t hash) {
    Entry* entry = Probe(key, hash);
    return entry->state == 0 ? nullptr : entry;
  }

  // The key's entry; a new one's state is 0 and must be set before the next call.
  Entry* FindOrInsert(int64_t key, uint64_t hash, uint64_t (*hash_of)(int64_t key)) {
    Entry* entry = Probe(key, hash);
    if (entry->state != 0) return entry;
    if (size_ + 1 > max_size_) {
      Grow(hash_of);
      entry = Probe(key, hash);
    }
    ++size_;
    entry->key = key;
    return entry;
  }

  // Removes an entry and closes the gap, so that no probe ever walks over removed ones.
  void Erase(Entry* entry, uint64_t (*hash_of)(int64_t key)) {
    --size_;
    uint64_t gap = entry - entries_;
    for (uint64_t at = gap;;) {
      at = (at + 1) & mask_;
      const Entry& next = entries_[at];
      if (next.state == 0) break;
      // It may fill the gap if that lies between where its probe starts and where it is.
      const uint64_t home = hash_of(next.key) & mask_;
      if (((at - home) & mask_) >= ((at - gap) & mask_)) {
        entries_[gap] = next;
        gap = at;
      }
    }
    entries_[gap] = {0, 0};
  }

  // body(Entry&) for every entry.
  template <typename Body>
  void ForEach(const Body& body) {
    for (int64_t i = 0; i < capacity(); ++i) {
      if (entries_[i].state != 0) body(entries_[i]);
    }
  }

  void Clear() {
    size_ = 0;
    memory_ = ZeroedMemory();
    Resize(kLeastCapacity);
  }

 private:
  static constexpr int64_t kLeastCapacity = 16;

  Entry* Probe(int64_t key, uint64_t hash) {
    for (uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (entry.state == 0 || entry.key == key) return &entry;
    }
  }

  // Doubles the capacity where the entries are. An entry's home, its hash modulo the capacity, then
  // stays what it is or moves up by the old capacity. Taken out and put back one after the other,
  // from behind a free one on, each finds a place no later than the one it leaves: all others
  // between its home and there have been put back before it.
  void Grow(uint64_t (*hash_of)(int64_t key)) {
    const uint64_t old_mask = mask_;
    Resize(2 * capacity());
    uint64_t free = 0;
    while (entries_[free].state != 0) ++free;
    for (uint64_t i = 1; i <= old_mask; ++i) {
      Entry& at = entries_[(free + i) & old_mask];
      if (at.state == 0) continue;
      const Entry entry = at;
      at = {0, 0};
      *Probe(entry.key, hash_of(entry.key)) = entry;
    }
  }

  // Keeps the entries; new ones are free.
  void Resize(int64_t capacity) {
    memory_.Resize(capacity * sizeof(Entry));
    entries_ = static_cast<Entry*>(memory_.data());
    mask_ = capacity - 1;
    max_size_ = static_cast<int64_t>(max_load_ * static_cast<double>(capacity));
  }

  const float max_load_;
  ZeroedMemory memory_;
  Entry* entries_ = nullptr;
  uint64_t mask_ = 0;
  int64_t size_ = 0, max_size_ = 0;
};

}  // namespace group_embedding
