// RowIndex: key -> row, in parts of bounded size, so that an insertion waits for the growth of one
// part at most. R. Fagin et al., "Extendible hashing" (1979): some bits of a key's hash choose its
// part; a full part is split in two by one more bit.
//
// A slot has 4 bytes and no key: the keys are in the rows' PackedInfo. Parts are up to 94% full.
// Not thread-safe: each shard of a table has one index, under the shard's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "table/host/row_index_part.h"
#include "table/keyed_rows.h"

namespace group_embedding {

class RowIndex {
 public:
  // The highest bits of a hash, with which the owner may choose among several indexes.
  static constexpr int kOwnersBits = 16;
  // 128 KB: a part that is as large as that is split rather than grown.
  static constexpr int64_t kPartBuckets = 1 << 11;
  // Slots have 32 bits.
  static constexpr int64_t kMaxRows = int64_t{1} << 32;

  // infos: of all rows; their keys do not change as long as the index has the rows.
  RowIndex(const PackedInfo* infos, HashOfKey hash_of) : infos_(infos), hash_of_(hash_of) {
    Clear();
  }

  int64_t size() const {
    int64_t total = 0;
    for (const auto& part : parts_) total += part->size();
    return total;
  }
  int64_t capacity() const {
    int64_t total = 0;
    for (const auto& part : parts_) total += part->capacity();
    return total;
  }
  int64_t bytes() const {
    return capacity() / IndexBucket::kSlots * static_cast<int64_t>(sizeof(IndexBucket));
  }

  // `hash`: of the key. First the one; once that is in the cache, the other; then Find.
  void Prefetch(uint64_t hash) const { BucketsOf(hash).Prefetch(hash); }
  int64_t PrefetchInfo(uint64_t hash) const { return BucketsOf(hash).PrefetchInfo(hash, infos_); }

  // The key's row, or kNoRow.
  int64_t Find(int64_t key, uint64_t hash) const {
    const int64_t row = BucketsOf(hash).Find(key, hash, infos_);
    return row == 0 ? kNoRow : row;
  }
  // As Find, where PrefetchInfo has returned a row and none was erased since: mostly it is the row.
  int64_t Find(int64_t key, uint64_t hash, int64_t probable_row) const {
    const bool is_there = probable_row != 0 && infos_[probable_row].key == key;
    return is_there ? probable_row : Find(key, hash);
  }

  // The row's key is `hash`'s, and not in the index. Throws std::bad_alloc before any change.
  void Insert(int64_t row, uint64_t hash) {
    while (PartOf(hash)->is_full()) MakeSpace(hash);
    RowIndexPart* part = PartOf(hash);
    if (!part->layout().Fits(row)) {
      while (!part->layout().Fits(row)) part->Widen();
      SetPlaces(part, hash);
    }
    part->Insert(row, hash);
  }

  // The index has the row, with that hash of its key.
  void Erase(int64_t row, uint64_t hash) { PartOf(hash)->Erase(row, hash); }

  // body(row) for every row.
  template <typename Body>
  void ForEach(const Body& body) const {
    for (const auto& part : parts_) part->ForEach(body);
  }

  void Clear() {
    parts_.clear();
    parts_.push_back(std::make_unique<RowIndexPart>(1, SlotLayout(kLeastRowBits), 0));
    part_of_ = {parts_[0].get()};
    buckets_of_ = {parts_[0]->buckets()};
    depth_ = 0;
  }

 private:
  static constexpr int kLeastRowBits = 16;
  // Bits 47 to 32 choose the part.
  static constexpr int kMaxDepth = 16;
  static constexpr int kPartsEnd = 64 - kOwnersBits;

  // Where the directory has the part of a key. Shifts by less than 64 bits, also at depth 0.
  uint64_t PlaceOf(uint64_t hash) const { return hash << kOwnersBits >> 1 >> (63 - depth_); }
  RowIndexPart* PartOf(uint64_t hash) const { return part_of_[PlaceOf(hash)]; }
  const IndexBuckets& BucketsOf(uint64_t hash) const { return buckets_of_[PlaceOf(hash)]; }

  // Grows or splits the part of a key.
  void MakeSpace(uint64_t hash) {
    RowIndexPart* part = PartOf(hash);
    // Keys that have more bits in common than their number explains are not worth a directory.
    const bool is_even = int64_t{1} << part->depth() <= 4 * static_cast<int64_t>(parts_.size());
    if (part->num_buckets() < kPartBuckets || part->depth() == kMaxDepth || !is_even) {
      Grow(part, hash);
    } else {
      Split(part, hash);
    }
  }

  void Grow(RowIndexPart* part, uint64_t hash) {
    RowIndexPart larger(2 * part->num_buckets(), part->layout(), part->depth());
    part->MoveTo(infos_, hash_of_, 0, &larger, &larger);
    *part = std::move(larger);
    SetPlaces(part, hash);
  }

  void Split(RowIndexPart* part, uint64_t hash) {
    const int depth = part->depth() + 1;
    const uint64_t bit = uint64_t{1} << (64 - kOwnersBits - depth);
    RowIndexPart low(part->num_buckets(), part->layout(), depth);
    auto high = std::make_unique<RowIndexPart>(part->num_buckets(), part->layout(), depth);
    part->MoveTo(infos_, hash_of_, bit, &low, high.get());
    if (part->depth() == depth_) DoubleDirectory();
    parts_.push_back(std::move(high));
    *part = std::move(low);
    SetPlaces(part, hash & ~bit);
    SetPlaces(parts_.back().get(), hash | bit);
  }

  void DoubleDirectory() {
    std::vector<RowIndexPart*> parts;
    std::vector<IndexBuckets> buckets;
    for (RowIndexPart* part : part_of_) {
      parts.insert(parts.end(), 2, part);
      buckets.insert(buckets.end(), 2, part->buckets());
    }
    part_of_ = std::move(parts);
    buckets_of_ = std::move(buckets);
    ++depth_;
  }

  // `hash`: of a key that belongs to the part.
  void SetPlaces(RowIndexPart* part, uint64_t hash) {
    const uint64_t num_places = uint64_t{1} << (depth_ - part->depth());
    const uint64_t begin = PlaceOf(hash) / num_places * num_places;
    std::fill_n(part_of_.begin() + begin, num_places, part);
    std::fill_n(buckets_of_.begin() + begin, num_places, part->buckets());
  }

  const PackedInfo* const infos_;
  const HashOfKey hash_of_;
  std::vector<std::unique_ptr<RowIndexPart>> parts_;
  // The directory, [2^depth_]: parts, and where their buckets are, so that a search need not ask.
  std::vector<RowIndexPart*> part_of_;
  std::vector<IndexBuckets> buckets_of_;
  int depth_ = 0;
};

}  // namespace group_embedding
