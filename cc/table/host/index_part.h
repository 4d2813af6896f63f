// IndexPart: a part of an index, key -> number, with open addressing and linear probing. Most
// searches read one cache line.
//
// Entries have 16 bytes; a free entry is all zeros, so that every key is legal. Not thread-safe.
#pragma once

#include <cstdint>
#include <new>
#include <utility>

#include "table/host/packed_info.h"
#include "table/zeroed_memory.h"

namespace group_embedding {

struct IndexEntry {
  int64_t key;
  int64_t state;  // not 0; what it means is the owner's
};

// Where a part's entries are, until it grows. The low bits of hashes are used.
struct IndexEntries {
  IndexEntry* entries;
  uint64_t mask;  // their number, a power of two, less one

  // The key's entry, or the free one, with state 0, where it belongs.
  IndexEntry* Probe(int64_t key, uint64_t hash) const {
    for (uint64_t at = hash & mask;; at = (at + 1) & mask) {
      IndexEntry& entry = entries[at];
      if (entry.state == 0 || entry.key == key) return &entry;
    }
  }
};

class IndexPart {
 public:
  static constexpr int64_t kLeastCapacity = 16;

  // Is full when more than `max_load` of it is taken. `depth`: how many bits of their hashes, the
  // highest that an index uses, its keys have in common.
  IndexPart(float max_load, int64_t capacity, int depth) : max_load_(max_load), depth_(depth) {
    Allocate(capacity);
  }

  int64_t size() const { return size_; }
  int64_t capacity() const { return mask_ + 1; }
  int depth() const { return depth_; }
  bool is_full() const { return size_ + 1 > max_size_; }
  bool is_sparse() const { return capacity() > kLeastCapacity && size_ * 8 < max_size_; }

  IndexEntries entries() const { return {entries_, mask_}; }

  // Makes a free entry, from Probe, the key's. The caller sets its state.
  void Take(IndexEntry* entry, int64_t key) {
    ++size_;
    entry->key = key;
  }

  // Removes an entry and closes the gap, so that no probe ever walks over removed ones.
  void Erase(IndexEntry* entry, HashOfKey hash_of) {
    --size_;
    uint64_t gap = entry - entries_;
    for (uint64_t at = gap;;) {
      at = (at + 1) & mask_;
      const IndexEntry& next = entries_[at];
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

  // body(IndexEntry&) for every entry.
  template <typename Body>
  void ForEach(const Body& body) {
    for (int64_t i = 0; i < capacity(); ++i) {
      if (entries_[i].state != 0) body(entries_[i]);
    }
  }

  // Doubles the capacity.
  void Grow(HashOfKey hash_of) { Resize(2 * capacity(), hash_of); }
  // Halves the capacity of a sparse part; false: the system gave no memory, and all is as it was.
  bool Shrink(HashOfKey hash_of) {
    try {
      Resize(capacity() / 2, hash_of);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  // Moves the keys whose next bit is set to `other`, which is empty and of this capacity and of the
  // depth that both have then. `bit`: the one, of a hash.
  void Split(uint64_t bit, HashOfKey hash_of, IndexPart* other) {
    depth_ = other->depth_;
    size_ = 0;
    TakeOutAll([&](const IndexEntry& entry) {
      const uint64_t hash = hash_of(entry.key);
      IndexPart* to = (hash & bit) == 0 ? this : other;
      PutBack(entry, hash, to);
      ++to->size_;
    });
  }

 private:
  void Resize(int64_t capacity, HashOfKey hash_of) {
    IndexPart resized(max_load_, capacity, depth_);
    ForEach([&](const IndexEntry& entry) { PutBack(entry, hash_of(entry.key), &resized); });
    resized.size_ = size_;
    *this = std::move(resized);
  }
  static void PutBack(const IndexEntry& entry, uint64_t hash, IndexPart* to) {
    *to->entries().Probe(entry.key, hash) = entry;
  }

  // Takes entries out one after the other, from behind a free one on, and gives them to put_back.
  // Back in the same memory, each finds a place no later than the one it left, as all others
  // between its home and there have been put back before it.
  template <typename PutBack>
  void TakeOutAll(const PutBack& put_back) {
    uint64_t free = 0;
    while (entries_[free].state != 0) ++free;
    for (uint64_t i = 1; i <= mask_; ++i) {
      IndexEntry& at = entries_[(free + i) & mask_];
      if (at.state == 0) continue;
      const IndexEntry entry = at;
      at = {0, 0};
      put_back(entry);
    }
  }

  void Allocate(int64_t capacity) {
    memory_ = ZeroedMemory(capacity * static_cast<int64_t>(sizeof(IndexEntry)));
    entries_ = static_cast<IndexEntry*>(memory_.data());
    mask_ = capacity - 1;
    max_size_ = static_cast<int64_t>(max_load_ * static_cast<double>(capacity));
  }

  float max_load_;
  int depth_;
  ZeroedMemory memory_;
  IndexEntry* entries_ = nullptr;
  uint64_t mask_ = 0;
  int64_t size_ = 0, max_size_ = 0;
};

}  // namespace group_embedding
