// What a RowStore held at one instant. Whoever is about to change a row says so first; if the row
// has not been read yet, its content is put aside for the reader. So nobody waits for the reader
// but to copy the rows that he changes himself.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "table/row_store.h"

namespace group_embedding {

class RowSnapshot {
 public:
  // `changed_since`: only rows trained in a batch of at least that number. Made while nothing
  // changes.
  RowSnapshot(const RowStore& store, int64_t changed_since);

  int64_t num_rows() const { return num_rows_; }

  // Reads rows [begin, end) as Snapshot::Read does.
  void Read(int64_t begin, int64_t end, KeyedRows* rows);

  // `row` is about to change.
  void BeforeWrite(int64_t row) {
    if (row < store_.first_row() || row >= num_rows_ || IsRead(row)) return;
    PutAside(row);
  }

 private:
  static constexpr int64_t kStripeRows = 64;  // rows of one word of `read_` have one lock
  static constexpr int64_t kNumLocks = 256;

  struct Part {  // of the rows that have one lock
    std::mutex mutex;
    KeyedRows aside;
    std::unordered_map<int64_t, size_t> places;  // of rows, in `aside`
  };

  bool IsRead(int64_t row) const {
    return (read_[row / 64].load(std::memory_order_acquire) >> (row % 64)) & 1;
  }
  void SetRead(int64_t row) {
    read_[row / 64].fetch_or(uint64_t{1} << (row % 64), std::memory_order_release);
  }
  bool IsWanted(int64_t row) const {
    return store_.IsKeys(row) && store_.Info(row).clock >= changed_since_;
  }
  Part& PartOf(int64_t row) { return parts_[row / kStripeRows % kNumLocks]; }
  void PutAside(int64_t row);
  void Append(int64_t row, KeyedRows* rows) const;
  void AppendAside(const KeyedRows& aside, size_t place, KeyedRows* rows) const;

  const RowStore& store_;
  const int64_t num_rows_, changed_since_;
  const size_t num_slots_;
  // A bit per row: it was read or put aside. What a bit says is in place before it is set.
  std::unique_ptr<std::atomic<uint64_t>[]> read_;
  std::unique_ptr<Part[]> parts_;
};

}  // namespace group_embedding
