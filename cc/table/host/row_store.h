// RowStore: the rows of a keyed table in host memory: values, slots and infos, by row number.
//
// Thread safety: several threads may call Take() and Return(); a taken row belongs to the thread
// that took it. A method that is called exclusive must run alone, but for the thread of TouchAhead.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/status.h"
#include "table/embedding_table.h"
#include "table/host/row_infos.h"
#include "table/memory.h"
#include "table/touch_ahead.h"

namespace group_embedding {

class RowSnapshot;

class RowStore : public GrowingMemory {
 public:
  // `matrix`: as of MakeHostTable.
  RowStore(const TableOptions& options, const void* matrix, Status* error);
  ~RowStore() { TouchAhead::Shared().Forget(this); }

  const TableOptions& options() const { return options_; }
  const std::vector<SlotOptions>& slots() const { return slots_; }
  int64_t first_row() const { return first_row_; }
  int64_t num_rows() const { return num_rows_.load(std::memory_order_acquire); }
  int64_t row_bytes() const { return row_bytes_; }
  int64_t slot_row_bytes(size_t s) const { return slots_[s].width * SizeOf(slots_[s].dtype); }
  int64_t BytesPerRow(const std::vector<SlotOptions>& more = {}) const;
  int64_t memory_bytes() const { return num_rows() * BytesPerRow() + infos_.bytes_of_counts(); }

  char* Row(int64_t row) const { return rows_.data() + row * row_bytes_; }
  char* SlotRow(size_t s, int64_t row) const {
    return slot_arrays_[s].data() + row * slot_row_bytes(s);
  }
  RowInfos& infos() { return infos_; }
  const RowInfos& infos() const { return infos_; }
  bool IsKeys(int64_t row) const { return row >= first_row_ && infos_.IsKeys(row); }

  // The minute in which the key of a row was trained last; 0: not known.
  uint32_t MinuteOf(int64_t row) const {
    uint32_t minute = 0;
    if (time_slot_ >= 0) std::memcpy(&minute, SlotRow(time_slot_, row), sizeof(minute));
    return minute;
  }
  void SetMinute(int64_t row, uint32_t minute) const {
    if (time_slot_ >= 0) std::memcpy(SlotRow(time_slot_, row), &minute, sizeof(minute));
  }

  // The row that a key without one reads.
  int64_t DefaultRow(int64_t key) const {
    const int64_t matrix_rows = options_.initial.matrix_rows;
    const bool starts_as_it = matrix_rows > 0 && options_.admission.kind == Admission::Kind::kAll;
    return starts_as_it ? MatrixRow(key, matrix_rows) : matrix_rows;
  }

  // Appends up to `count` free rows to `rows`, and says why if they are fewer.
  Status Take(int64_t count, std::vector<int64_t>* rows);
  // A call that may have taken rows ends: beside what follows, memory is made ready for as many
  // more.
  void EndCall();
  bool TouchNextPage() override;
  // How many rows Take() has, unless the system runs out of memory.
  int64_t NumFree();
  // The number of keys' rows that fit with the present slots and those of `more`.
  int64_t max_rows(const std::vector<SlotOptions>& more = {}) const;
  // Gives back a row that was taken and not used, or that no batch uses any more.
  void Return(int64_t row);
  // A row whose key was erased; free once all batches that had begun have ended.
  void Retire(int64_t row);
  // Rows of keys that the index no longer has. They are free at once if no batch but `own`, which
  // have not located them, is in flight.
  void Release(const std::vector<int64_t>& rows, const std::vector<int64_t>& own);
  // As Retire, for a key that batches after number `clock` have not found.
  void RetireSince(int64_t clock, int64_t row);
  // Makes a taken row the key's, as a key starts.
  void Start(int64_t row, int64_t key, int64_t count, int64_t version);
  // As Start, but the row stays no key's.
  void StartWithoutKey(int64_t row, int64_t key);
  // As Start, except for the values, which the caller writes.
  void StartAllButValues(int64_t row, int64_t key, int64_t count, int64_t version);

  // The rows of keys will never be more than so many.
  void LimitRows(int64_t max_rows);

  Status Slot(const SlotOptions& slot, void** array);  // exclusive
  void Clear();                                        // exclusive

  int64_t BeginBatch();
  void EndBatch(int64_t batch);
  int64_t clock() const { return infos_.clock(); }
  // The clocks that followers of the table's changes may ask for.
  void SetMarks(std::vector<int64_t> marks);
  // Gives a row that was taken to the key of a record, which has another batch's clock.
  void StartOfBatch(int64_t row, const RowInfo& info);
  // The first batch that has not ended, or the next to begin.
  int64_t OldestBatch() const;

 private:
  struct Array {
    std::unique_ptr<Memory> memory;
    int64_t touched_bytes = 0;  // until the last page that a thread was given

    char* data() const { return memory->data(); }
  };

  // body(array, its bytes per row) for values, what is kept of rows, and slots.
  template <typename Body>
  void ForArrays(const Body& body) {
    body(&rows_, row_bytes_);
    body(&packed_infos_, static_cast<int64_t>(sizeof(PackedInfo)));
    for (size_t s = 0; s < slots_.size(); ++s) body(&slot_arrays_[s], slot_row_bytes(s));
  }

  void StartSlots(int64_t row);

  // Under mutex_, until the next blank line.
  void FreeRetired();
  Status GrowTo(int64_t num_rows);
  Status GrowArrays(int64_t num_rows);
  Status WhatIsLeft(int64_t more_rows, const Status& status) const;
  // So that any of the rows can be given back without memory for that.
  Status ReserveFree(int64_t num_rows);
  // A large page that rows from `begin` on will need soon, once rows until `end` are given, or
  // null. One thread gets it, and touches it while others write to the pages before.
  char* TakeUntouchedPage(int64_t begin, int64_t end);

  const TableOptions options_;
  const int64_t row_bytes_, first_row_;
  const int64_t max_bytes_, reserved_rows_;
  int64_t limit_ = std::numeric_limits<int64_t>::max();
  Array rows_, packed_infos_;
  RowInfos infos_;
  std::vector<SlotOptions> slots_;
  std::vector<Array> slot_arrays_;
  int time_slot_ = -1;  // kTimeSlot; -1: the table keeps no time

  mutable std::mutex mutex_;  // of what follows
  std::atomic<int64_t> num_rows_{0};
  int64_t usable_rows_ = 0;
  int64_t rows_before_call_ = 0, rows_ahead_ = 0;  // as of EndCall
  std::vector<int64_t> free_;
  struct Retired {
    int64_t row, clock;
  };
  std::deque<Retired> retired_;
  std::multiset<int64_t> batches_;
};

}  // namespace group_embedding
