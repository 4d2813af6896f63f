// RowIndexPart: a part of an index, key -> row. A key is in the bucket that its hash names or, if
// that one was full, in one of the next.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/prefetch.h"
#include "table/host/index_bucket.h"
#include "table/host/packed_info.h"
#include "table/zeroed_memory.h"

namespace group_embedding {

// Where a part's buckets are, until it grows.
struct IndexBuckets {
  IndexBucket* buckets;
  uint32_t mask;  // their number, a power of two, less one
  SlotLayout layout;

  // Bits 31 and below choose the bucket; the lowest are the tag.
  uint32_t HomeOf(uint64_t hash) const {
    return static_cast<uint32_t>((hash & 0xffffffff) * (uint64_t{mask} + 1) >> 32);
  }
  void Prefetch(uint64_t hash) const { group_embedding::Prefetch(buckets + HomeOf(hash)); }

  // Prefetches what is kept of the row that the key probably has, and returns that; 0: none.
  int64_t PrefetchInfo(uint64_t hash, const PackedInfo* infos) const {
    const IndexBucket& home = buckets[HomeOf(hash)];
    const uint32_t found = home.Find(layout, hash);
    const int64_t row = found == 0 ? 0 : RowAt(home, found);
    group_embedding::Prefetch(infos + row);
    return row;
  }

  // The key's row, or 0.
  int64_t Find(int64_t key, uint64_t hash, const PackedInfo* infos) const {
    const uint32_t home = HomeOf(hash);
    uint32_t at = home;
    do {
      const IndexBucket& bucket = buckets[at];
      for (uint32_t found = bucket.Find(layout, hash); found != 0; found &= found - 1) {
        const int64_t row = RowAt(bucket, found);
        if (infos[row].key == key) return row;
      }
      if (bucket.num_passed == 0) return 0;
      at = (at + 1) & mask;
    } while (at != home);  // keys that came and went may have passed every bucket
    return 0;
  }

 private:
  int64_t RowAt(const IndexBucket& bucket, uint32_t found) const {
    return layout.RowOf(bucket.slots[__builtin_ctz(found)]);
  }
};

class RowIndexPart {
 public:
  // `depth`: how many bits of their hashes, the highest that an index uses, its keys have in
  // common. Throws std::bad_alloc.
  RowIndexPart(int64_t num_buckets, SlotLayout layout, int depth)
      : memory_(num_buckets * static_cast<int64_t>(sizeof(IndexBucket))),
        layout_(layout),
        depth_(depth),
        num_buckets_(num_buckets) {}

  int64_t size() const { return size_; }
  int64_t num_buckets() const { return num_buckets_; }
  int64_t capacity() const { return num_buckets_ * IndexBucket::kSlots; }
  int depth() const { return depth_; }
  SlotLayout layout() const { return layout_; }
  bool is_full() const { return size_ + 1 > capacity() * kFullPercent / 100; }

  IndexBuckets buckets() const {
    return {static_cast<IndexBucket*>(memory_.data()), static_cast<uint32_t>(num_buckets_ - 1),
            layout_};
  }

  // The part is not full, and its slots hold the row's number.
  void Insert(int64_t row, uint64_t hash) {
    const IndexBuckets to = buckets();
    for (uint32_t at = to.HomeOf(hash);; at = (at + 1) & to.mask) {
      IndexBucket& bucket = to.buckets[at];
      const uint32_t free = bucket.FindSlot(0);
      if (free == 0) {
        ++bucket.num_passed;
        continue;
      }
      bucket.slots[__builtin_ctz(free)] = layout_.SlotOf(row, hash);
      ++size_;
      return;
    }
  }

  // The row is in the part.
  void Erase(int64_t row, uint64_t hash) {
    const IndexBuckets from = buckets();
    for (uint32_t at = from.HomeOf(hash);; at = (at + 1) & from.mask) {
      IndexBucket& bucket = from.buckets[at];
      const uint32_t found = bucket.FindSlot(layout_.SlotOf(row, hash));
      if (found == 0) {
        --bucket.num_passed;
        continue;
      }
      bucket.slots[__builtin_ctz(found)] = 0;
      --size_;
      return;
    }
  }

  // body(row) for every row.
  template <typename Body>
  void ForEach(const Body& body) const {
    const IndexBuckets from = buckets();
    for (int64_t b = 0; b < num_buckets_; ++b) {
      for (const uint32_t slot : from.buckets[b].slots) {
        if (slot != 0) body(layout_.RowOf(slot));
      }
    }
  }

  // Takes a bit more of every slot for row numbers, and one less for hashes.
  void Widen() {
    const IndexBuckets from = buckets();
    const uint32_t rows = layout_.row_mask();
    for (int64_t b = 0; b < num_buckets_; ++b) {
      for (uint32_t& slot : from.buckets[b].slots) slot = ((slot & ~rows) << 1) | (slot & rows);
    }
    layout_ = SlotLayout(layout_.row_bits() + 1);
  }

  // Moves all rows to `low`, or to `high` if their hash has the bit; both are empty.
  void MoveTo(const PackedInfo* infos, HashOfKey hash_of, uint64_t bit, RowIndexPart* low,
              RowIndexPart* high) const {
    std::vector<uint32_t> rows;
    rows.reserve(size_);
    ForEach([&](int64_t row) { rows.push_back(static_cast<uint32_t>(row)); });
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i + kAhead < rows.size()) group_embedding::Prefetch(infos + rows[i + kAhead]);
      const uint64_t hash = hash_of(infos[rows[i]].key);
      ((hash & bit) == 0 ? low : high)->Insert(rows[i], hash);
    }
  }

 private:
  static constexpr int64_t kFullPercent = 94;
  static constexpr size_t kAhead = 24;

  ZeroedMemory memory_;
  SlotLayout layout_;
  int depth_;
  int64_t num_buckets_, size_ = 0;
};

}  // namespace group_embedding
