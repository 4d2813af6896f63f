// key -> a number, by open addressing with linear probing: one line of memory serves most keys.
//
// Entries are 16 bytes, a free one is all zeros, so every key is legal. Not thread-safe; its owner
// has the lock (a shard of a table has one index).
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace group_embedding {

class KeyIndex {
 public:
  struct Entry {
    int64_t key;
    int64_t state;  // not 0; what it means is the owner's
  };

  // Grows when more than `max_load` of it is taken.
  explicit KeyIndex(float max_load) : max_load_(max_load) { Allocate(kLeastCapacity); }

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
      Rehash(2 * capacity(), hash_of);
      entry = Probe(key, hash);
    }
    ++size_;
    entry->key = key;
    return entry;
  }

  // Removes an entry and closes the gap, so that no probe ever walks over removed ones.
  void Erase(Entry* entry, uint64_t (*hash_of)(int64_t key)) {
    --size_;
    uint64_t gap = entry - entries_.get();
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
    Allocate(kLeastCapacity);
  }

 private:
  static constexpr int64_t kLeastCapacity = 16;
  static constexpr size_t kPage = 4096, kLargePage = size_t{2} << 20;

  struct Free {
    void operator()(Entry* entries) const { std::free(entries); }
  };

  Entry* Probe(int64_t key, uint64_t hash) {
    for (uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (entry.state == 0 || entry.key == key) return &entry;
    }
  }

  void Allocate(int64_t capacity) {
    const size_t bytes = capacity * sizeof(Entry);
    entries_.reset(static_cast<Entry*>(std::calloc(capacity, sizeof(Entry))));
    if (entries_ == nullptr) throw std::bad_alloc();
    if (bytes >= kLargePage) {  // read at random, as rows are: see memory.cc
      char* begin = reinterpret_cast<char*>(entries_.get());
      char* page = begin + (-reinterpret_cast<uintptr_t>(begin) & (kPage - 1));
      madvise(page, (begin + bytes - page) & ~(kPage - 1), MADV_HUGEPAGE);
    }
    mask_ = capacity - 1;
    max_size_ = static_cast<int64_t>(max_load_ * static_cast<double>(capacity));
  }

  void Rehash(int64_t capacity, uint64_t (*hash_of)(int64_t key)) {
    const int64_t old_capacity = this->capacity();
    std::unique_ptr<Entry[], Free> old = std::move(entries_);
    Allocate(capacity);
    for (int64_t i = 0; i < old_capacity; ++i) {
      if (old[i].state != 0) *Probe(old[i].key, hash_of(old[i].key)) = old[i];
    }
  }

  const float max_load_;
  std::unique_ptr<Entry[], Free> entries_;
  uint64_t mask_ = 0;
  int64_t size_ = 0, max_size_ = 0;
};

}  // namespace group_embedding
