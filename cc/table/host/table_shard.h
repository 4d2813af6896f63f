// TableShard: the keys of one shard of a table in host memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "table/host/key_index.h"
#include "table/host/row_index.h"
#include "table/host/table_use.h"

namespace group_embedding {

// Keys with a row are in `index`. Keys without one that an exact filter has seen are in another
// index, which lasts as long as there are any.
class TableShard {
 public:
  // counts_load: as KeyIndex's max_load.
  TableShard(const PackedInfo* infos, HashOfKey hash_of, float counts_load)
      : index(infos, hash_of), hash_of_(hash_of), counts_load_(counts_load) {}

  mutable std::mutex mutex;  // of all but num_rows and use
  RowIndex index;
  std::atomic<int64_t> num_rows{0};  // keys that have one
  ShardUse use;
  // While a snapshot has not read this shard's counts: the former counts of keys changed since it
  // was taken, 0 for keys that had none. Else null.
  std::unique_ptr<std::unordered_map<int64_t, int64_t>> former_counts;

  int64_t bytes() const { return index.bytes() + (counts_ == nullptr ? 0 : counts_->bytes()); }
  int64_t num_counted() const { return num_counted_; }

  // How often a key without a row was seen; 0: it has a row or is not counted.
  int64_t CountOf(int64_t key, uint64_t hash) const {
    const KeyIndex::Entry* entry = counts_ == nullptr ? nullptr : counts_->Find(key, hash);
    return entry == nullptr ? 0 : entry->state;
  }
  // count: at least 1.
  void SetCount(int64_t key, uint64_t hash, int64_t count) {
    if (counts_ == nullptr) counts_ = std::make_unique<KeyIndex>(counts_load_);
    const int64_t former = CountOf(key, hash);
    BeforeChange(key, former);
    counts_->FindOrInsert(key, hash, hash_of_)->state = count;
    if (former == 0) ++num_counted_;
  }
  // As it has a row now, or is no longer known.
  void ForgetCount(int64_t key, uint64_t hash) {
    if (counts_ == nullptr) return;
    KeyIndex::Entry* entry = counts_->Find(key, hash);
    if (entry == nullptr) return;
    BeforeChange(key, entry->state);
    counts_->Erase(entry, hash_of_);
    if (--num_counted_ == 0) counts_.reset();
  }
  // body(key, count) for every key without a row.
  template <typename Body>
  void ForEachCount(const Body& body) const {
    if (counts_ == nullptr) return;
    counts_->ForEach([&](const KeyIndex::Entry& entry) { body(entry.key, entry.state); });
  }

  // The count of a key is about to change.
  void BeforeChange(int64_t key, int64_t count) {
    if (former_counts != nullptr) former_counts->try_emplace(key, count);
  }

 private:
  const HashOfKey hash_of_;
  const float counts_load_;
  std::unique_ptr<KeyIndex> counts_;  // null: there are none
  int64_t num_counted_ = 0;
};

}  // namespace group_embedding
