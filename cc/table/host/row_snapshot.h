// RowSnapshot: the content of a RowStore at one instant. Before a row changes that has not been
// read, its content is copied for the reader. So a writer waits only while the rows that it changes
// are copied.
//
// An eviction at that instant works in the same way: a row is judged when it is read, when it is
// about to change, or when its key is located, whichever is first. It has not changed before, so
// the result is the same. The bit that marks a row as read marks it as judged too. An evicted row
// belongs to no key (its count is -1); the index still has the key, and TakeEvicted returns it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "table/evicted_rows.h"
#include "table/eviction.h"
#include "table/host/row_store.h"

namespace group_embedding {

class RowSnapshot {
 public:
  struct EvictedKey {
    int64_t key, row;
  };

  // `changed_since`: only rows trained in a batch of at least that number. Made while nothing
  // changes. handed_out: null, or what receives the keys that are evicted.
  RowSnapshot(RowStore& store, int64_t changed_since, const Eviction& eviction = {},
              int64_t step = -1, EvictedRows* handed_out = nullptr);

  int64_t num_rows() const { return num_rows_; }
  // The last batch that had begun.
  int64_t clock() const { return clock_; }

  // Reads rows [begin, end) as Snapshot::Read does.
  void Read(int64_t begin, int64_t end, KeyedRows* rows);

  // `row` is about to change.
  void BeforeWrite(int64_t row) {
    if (row < store_.first_row() || row >= num_rows_ || IsRead(row)) return;
    CopyOnce(row);
  }

  // Whether the table's index may have keys that were evicted.
  bool evicts() const { return evicts_.load(std::memory_order_acquire); }
  // Whether the key that the index has with this row was evicted. With the lock of the key's shard.
  bool IsEvicted(int64_t row);
  // Judges rows [begin, end).
  void JudgeRows(int64_t begin, int64_t end);
  // The keys that were evicted, as far as rows were judged, and no former call has returned; adds
  // them to `counts`.
  std::vector<EvictedKey> TakeEvicted(ExpiredCounts* counts);
  // All rows were judged, and the index has none of those keys any more.
  void EndEviction() { evicts_.store(false, std::memory_order_release); }
  // The keys that were evicted, as far as rows were judged.
  std::vector<int64_t> evicted() const;

 private:
  static constexpr int64_t kStripeRows = 64;  // rows of one word of `read_` have one lock
  static constexpr uint64_t kAllRead = ~uint64_t{0};
  static constexpr int64_t kNumLocks = 256;

  struct Stripes {  // the rows that have one lock
    std::mutex mutex;
    KeyedRows copies;  // of rows that changed before they were read
    std::unordered_map<int64_t, size_t> copy_of_row;
  };

  bool IsRead(int64_t row) const {
    return (read_[row / 64].load(std::memory_order_acquire) >> (row % 64)) & 1;
  }
  void SetRead(int64_t row) {
    read_[row / 64].fetch_or(uint64_t{1} << (row % 64), std::memory_order_release);
  }
  bool IsWanted(int64_t row) const {
    return store_.IsKeys(row) && store_.infos().ClockOf(row) >= changed_since_;
  }
  Stripes& StripesOf(int64_t row) { return stripes_[row / kStripeRows % kNumLocks]; }
  void CopyOnce(int64_t row);
  // Evicts the key of a row that was not read yet, if it goes. With the lock of the row's stripes.
  bool Evict(int64_t row);
  void Append(int64_t row, KeyedRows* rows) const;
  // To its first rows; what was appended last may be incomplete.
  void Truncate(size_t num_rows, KeyedRows* rows) const;
  void AppendCopy(const KeyedRows& copies, size_t copy, KeyedRows* rows) const;

  RowStore& store_;
  const int64_t num_rows_, changed_since_, clock_;
  const size_t num_slots_;
  // A bit per row: it was read or copied. The bit is set after that.
  std::unique_ptr<std::atomic<uint64_t>[]> read_;
  std::unique_ptr<Stripes[]> stripes_;

  const Eviction eviction_;
  const int64_t step_;
  EvictedRows* const handed_out_;
  std::atomic<bool> evicts_;
  mutable std::mutex evicted_mutex_;  // of what follows; taken last
  std::vector<EvictedKey> evicted_;
  size_t num_taken_ = 0;   // of them
  ExpiredCounts expired_;  // of those that were not taken
};

}  // namespace group_embedding
