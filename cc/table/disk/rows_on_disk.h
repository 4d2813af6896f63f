// RowsOnDisk: the rows of a table that are on disk, as records in a DiskStore.
//
// An eviction that comes with a snapshot deletes records as the snapshot is read. Until then,
// evicted records are not found. The batch number in a record's header tells them from records
// written since the snapshot.
//
// Thread safety: that of DiskStore.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/status.h"
#include "table/disk/cache_strategy.h"
#include "table/disk/disk_store.h"
#include "table/embedding_table.h"
#include "table/evicted_rows.h"
#include "table/row_records.h"
#include "table/use_counts.h"

namespace group_embedding {

struct DiskTierOptions {
  std::string path;       // as of DiskStoreOptions
  int64_t max_bytes = 0;  // of rows on disk with their slots and infos; 0: no limit but the disk's
  CacheStrategy cache_strategy = CacheStrategy::kLeastFrequent;
};

// Some keys that are on disk, and their records.
struct FoundOnDisk {
  std::vector<int64_t> keys;
  std::vector<char> records;
  std::vector<int64_t> evicted;  // to be erased, and else as if they were not there
  ExpiredCounts expired;         // of these
};

struct DiskEviction {
  Eviction eviction;
  int64_t step = -1;
  int64_t clock = 0;  // of records of batches up to that number
};

class RowsOnDisk {
 public:
  static constexpr int64_t kAtOnce = 4096;   // records in memory
  static constexpr int64_t kSampled = 1024;  // records whose age is looked at

  RowsOnDisk(const TableOptions& options, const DiskTierOptions& disk, Status* error);

  const RecordLayout& layout() const { return layout_; }
  const DiskStore& store() const { return *store_; }
  // An error that no caller could receive: keys that were erased may still be there.
  const Status& failed() const { return failed_; }

  // Records have one slot more; what a row of it starts as. is_time: it is kTimeSlot. Exclusive.
  void AddSlot(std::vector<char> start, bool is_time = false);
  // Of `keys`, those that are there.
  Status Find(const int64_t* keys, int64_t num_keys, FoundOnDisk* found) const;
  // As Find, for any number of keys, kAtOnce at a time.
  Status FindAll(const std::vector<int64_t>& keys, FoundOnDisk* found) const;
  // As of DiskStore; while an eviction is carried out, it writes to the heads of `records`.
  Status Put(const std::vector<int64_t>& keys, char* records);
  Status Erase(const std::vector<int64_t>& keys);
  // What receives evicted keys; it is there as long as this.
  void HandOutTo(EvictedRows* evicted) { handed_out_ = evicted; }
  // As Erase, of any number of different keys that the table evicts: they are handed out.
  Status EraseEvicted(std::vector<int64_t> keys);
  // As EraseEvicted, of `found.evicted`.
  Status EraseExpired(const FoundOnDisk& found);
  ExpiredCounts expired() const;
  // How many rows there is space for beside `in_memory`, if records have so many bytes more.
  int64_t MaxRows(int64_t in_memory, int64_t more_bytes) const {
    if (disk_.max_bytes == 0) return std::numeric_limits<int64_t>::max();
    return in_memory + disk_.max_bytes / (BytesPerRow() + more_bytes);
  }
  // How many rows more there is space for, once `leaving` of those that are there have left.
  int64_t NumFree(int64_t leaving) const {
    if (disk_.max_bytes == 0) return std::numeric_limits<int64_t>::max();
    return disk_.max_bytes / BytesPerRow() - (store_->num_keys() - leaving);
  }
  // Why `more` rows cannot go to disk while `leaving` others leave it, or nothing.
  Status CheckSize(int64_t more, int64_t leaving);
  // Puts what `rows` has for rows.keys[i], for each i of `chosen`, as of batch `clock`; CheckSize
  // has said that there is space.
  Status Insert(const KeyedRows& rows, const std::vector<size_t>& chosen, int64_t clock);

  // The earliest step among a sample of keys; -1: none has a step, or the disk fails.
  int64_t EarliestStep() const;

  // Deletes the remaining records of an eviction, and returns their number. No other call may move
  // rows to or from the disk meanwhile. erased: null, or receives the keys.
  int64_t CompleteEviction(std::vector<int64_t>* erased = nullptr);
  // After that.
  int64_t num_keys() {
    CompleteEviction();
    return store_->num_keys();
  }

  // visit(key, head, values, slots), of every key; values and slots, one after the other, are
  // aligned. No eviction is left to be carried out.
  Status Visit(
      const std::function<void(int64_t, const RecordHead&, const char*, const char*)>& visit) const;

  // Erases keys and returns how many were on disk; appends these to `erased`. keys: in any order,
  // and may repeat. Exclusive, as are the methods below.
  int64_t EraseSome(std::vector<int64_t> keys, std::vector<int64_t>* erased);
  int64_t Evict(const Eviction& eviction, int64_t step, std::vector<int64_t>* erased);
  void Clear(std::vector<int64_t>* erased);
  Status ReadAll(KeyedRows* rows) const;
  // Fills in those infos, of keys, that say that there is no row. `tier`: the number of this one.
  Status Describe(const int64_t* keys, int64_t num_keys, int32_t tier, KeyInfo* infos) const;
  // Of `memory` first, and then of what is here; rows trained in batches before `changed_since` are
  // not wanted. moves: the lock of who moves rows to or from the disk. changes: gets the keys that
  // were evicted here, in the end, unless saves alone follow and the snapshot was kept and has all
  // rows.
  std::unique_ptr<Snapshot> TakeSnapshot(std::unique_ptr<Snapshot> memory, bool changes_only,
                                         int64_t changed_since, const DiskEviction& eviction,
                                         std::mutex* moves, ChangeLog* changes);

 private:
  class TieredSnapshot;

  std::shared_ptr<const DiskEviction> eviction() const { return std::atomic_load(&eviction_); }
  void SetEviction(std::shared_ptr<const DiskEviction> eviction) {
    std::atomic_store(&eviction_, std::move(eviction));
  }
  // By what an eviction removes a record; kNone: it stays.
  Eviction::Kind RemovedBy(const char* record, const DiskEviction* eviction) const;
  bool IsEvicted(const char* record, const DiskEviction* eviction) const {
    return RemovedBy(record, eviction) != Eviction::Kind::kNone;
  }
  Status HandOut(const std::vector<int64_t>& keys);
  // Erases those of `keys` that go.
  Status Forget(const std::vector<int64_t>& keys);
  int64_t BytesPerRow() const { return layout_.bytes() + static_cast<int64_t>(sizeof(int64_t)); }
  template <typename Body>
  Status ForEach(const Body& body) const;

  const TableOptions options_;
  const DiskTierOptions disk_;
  RecordLayout layout_;
  int64_t minute_at_ = 0;  // in a record; 0: the table keeps no time
  std::unique_ptr<DiskStore> store_;
  EvictedRows* handed_out_ = nullptr;  // null: evicted keys are not handed out
  Status failed_;
  std::shared_ptr<const DiskEviction> eviction_;  // that is being carried out, or null
  std::mutex evicting_;                           // of who erases keys that go
  std::mutex handing_out_;                        // so that each key is handed out once; taken last
  mutable std::mutex counting_;                   // of expired_; taken last
  ExpiredCounts expired_;
};

}  // namespace group_embedding
