// KeyIndex: key -> number, in parts of bounded size, so that an insertion waits for the growth of
// one part at most. R. Fagin et al., "Extendible hashing" (1979): the highest bits of a key's hash
// choose its part; a full part is split in two by one more bit.
//
// Not thread-safe: each shard of a table has one index, under the shard's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "table/host/index_part.h"

namespace group_embedding {

class KeyIndex {
 public:
  using Entry = IndexEntry;

  // The highest bits of a hash, which the owner may have used to choose among several indexes.
  static constexpr int kOwnersBits = 16;
  // 2 MB, a large page: a part that is as large as that is split rather than grown.
  static constexpr int64_t kPartCapacity = int64_t{1} << 17;

  // Parts grow when more than `max_load` of them is taken.
  explicit KeyIndex(float max_load) : max_load_(max_load) { Clear(); }

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
  int64_t bytes() const { return capacity() * static_cast<int64_t>(sizeof(Entry)); }

  // The key's entry, or null. It stays where it is until the next FindOrInsert or Erase.
  Entry* Find(int64_t key, uint64_t hash) {
    Entry* entry = EntriesOf(hash).Probe(key, hash);
    return entry->state == 0 ? nullptr : entry;
  }

  // The key's entry; a new one's state is 0 and must be set before the next call.
  Entry* FindOrInsert(int64_t key, uint64_t hash, HashOfKey hash_of) {
    Entry* entry = EntriesOf(hash).Probe(key, hash);
    if (entry->state != 0) return entry;
    while (PartOf(hash)->is_full()) {
      MakeSpace(hash, hash_of);
      entry = EntriesOf(hash).Probe(key, hash);
    }
    PartOf(hash)->Take(entry, key);
    return entry;
  }

  void Erase(Entry* entry, HashOfKey hash_of) {
    const uint64_t hash = hash_of(entry->key);
    IndexPart* part = PartOf(hash);
    part->Erase(entry, hash_of);
    if (part->is_sparse() && part->Shrink(hash_of)) SetPlaces(part, hash);
  }

  // body(Entry&) for every entry.
  template <typename Body>
  void ForEach(const Body& body) {
    for (const auto& part : parts_) part->ForEach(body);
  }

  void Clear() {
    parts_.clear();
    parts_.push_back(std::make_unique<IndexPart>(max_load_, IndexPart::kLeastCapacity, 0));
    part_of_ = {parts_[0].get()};
    entries_of_ = {parts_[0]->entries()};
    depth_ = 0;
  }

 private:
  // Where the directory has the part of a key. Shifts by less than 64 bits, also at depth 0.
  uint64_t PlaceOf(uint64_t hash) const { return hash << kOwnersBits >> 1 >> (63 - depth_); }
  IndexPart* PartOf(uint64_t hash) const { return part_of_[PlaceOf(hash)]; }
  const IndexEntries& EntriesOf(uint64_t hash) const { return entries_of_[PlaceOf(hash)]; }

  uint64_t NumPlaces(const IndexPart& part) const { return uint64_t{1} << (depth_ - part.depth()); }

  // Grows or splits the part of a key.
  void MakeSpace(uint64_t hash, HashOfKey hash_of) {
    IndexPart* part = PartOf(hash);
    const uint64_t num_places = NumPlaces(*part);
    const uint64_t begin = PlaceOf(hash) / num_places * num_places;
    // Keys that have more bits in common than their number explains are not worth a directory.
    const bool is_even = int64_t{1} << part->depth() <= 4 * static_cast<int64_t>(parts_.size());
    if (part->capacity() < kPartCapacity || !is_even) {
      part->Grow(hash_of);
      SetPlaces(part, hash);
    } else if (num_places == 1) {
      DoubleDirectory();
      Split(part, 2 * begin, 2, hash_of);
    } else {
      Split(part, begin, num_places, hash_of);
    }
  }

  // The part has places [begin, begin + num_places), two at least.
  void Split(IndexPart* part, uint64_t begin, uint64_t num_places, HashOfKey hash_of) {
    const int depth = part->depth() + 1;
    parts_.push_back(std::make_unique<IndexPart>(max_load_, part->capacity(), depth));
    part->Split(uint64_t{1} << (64 - kOwnersBits - depth), hash_of, parts_.back().get());
    SetPlaces(begin + num_places / 2, num_places / 2, parts_.back().get());
  }

  void DoubleDirectory() {
    std::vector<IndexPart*> parts;
    std::vector<IndexEntries> entries;
    for (IndexPart* part : part_of_) {
      parts.insert(parts.end(), 2, part);
      entries.insert(entries.end(), 2, part->entries());
    }
    part_of_ = std::move(parts);
    entries_of_ = std::move(entries);
    ++depth_;
  }

  // `hash`: of a key that belongs to the part.
  void SetPlaces(IndexPart* part, uint64_t hash) {
    const uint64_t num_places = NumPlaces(*part);
    SetPlaces(PlaceOf(hash) / num_places * num_places, num_places, part);
  }
  void SetPlaces(uint64_t begin, uint64_t num_places, IndexPart* part) {
    std::fill_n(part_of_.begin() + begin, num_places, part);
    std::fill_n(entries_of_.begin() + begin, num_places, part->entries());
  }

  const float max_load_;
  std::vector<std::unique_ptr<IndexPart>> parts_;
  // The directory, [2^depth_]: parts, and where their entries are, so that a search need not ask.
  std::vector<IndexPart*> part_of_;
  std::vector<IndexEntries> entries_of_;
  int depth_ = 0;
};

}  // namespace group_embedding
