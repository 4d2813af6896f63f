// EmbeddingTable: a table whose rows are found by key. A key is any 64-bit number; the set of keys
// need not be known beforehand.
//
// Each key with a row has a row number, and all rows lie in one array that never moves (memory.h).
// Once a batch of keys is located, lookup, gradient and update of a keyed table are those of any
// other table: they get a pointer and row numbers. The array begins with rows that belong to no
// key, [0, first_row):
//   [0, matrix_rows)  the initial values of keys, if these are rows of a matrix
//   matrix_rows       the constant that a key without a row reads
// These rows are read and never updated.
//
// Thread safety: any number of threads may locate keys, read rows, and write different rows at a
// time. A method that is called exclusive must run alone; the caller holds a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/parallel.h"
#include "core/row_keys.h"
#include "core/status.h"
#include "table/change_log.h"
#include "table/keyed_rows.h"
#include "table/locate_rows.h"
#include "table/snapshot.h"
#include "table/table_options.h"
#include "table/use_counts.h"

namespace group_embedding {

class DeviceHash;  // device/device_table.h

class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;

  virtual const TableOptions& options() const = 0;

  // How keys are located, by the memory of the rows: one of the two is not null.
  virtual HostTable* host() { return nullptr; }
  virtual DeviceHash* device() { return nullptr; }

  // All rows that were ever in use, [num_rows, dim]; the pointer never changes.
  virtual Table rows() const = 0;
  virtual int64_t first_row() const = 0;
  // The keys of rows(); those of rows that are no key's are any. The pointer never changes.
  virtual RowKeys row_keys() const = 0;
  // Copy the matrix of initial values, [initial.matrix_rows, dim], to and from host memory.
  // WriteInitialRows is exclusive.
  virtual void ReadInitialRows(void* rows) const = 0;
  virtual void WriteInitialRows(const void* rows) = 0;

  // Batches in flight: rows of keys erased since the oldest batch began are not given to other
  // keys. A batch begins before its keys are located, and ends after the last use of its row
  // numbers. Both methods may be called at any time.
  virtual int64_t BeginBatch() = 0;
  virtual void EndBatch(int64_t batch) = 0;

  // Sets `array` to the slot of this name, which is made if the table has none. An error if the
  // slot has another type or width. Exclusive.
  virtual Status Slot(const SlotOptions& slot, void** array) = 0;
  virtual const std::vector<SlotOptions>& slots() const = 0;
  // Whether the table can have these slots, too, beside the rows that it has used.
  virtual Status CheckSlots(const std::vector<SlotOptions>& /*more*/) const { return {}; }

  virtual int64_t num_keys() const = 0;
  // The number of keys that can have a row, in all tiers, if the table also has `slots`.
  virtual int64_t max_keys(const std::vector<SlotOptions>& slots) const = 0;
  virtual int64_t memory_bytes() const = 0;         // used by rows, slots, infos and the index
  virtual int64_t host_bytes() const { return 0; }  // of memory_bytes, in host memory below a GPU's
  virtual int64_t disk_bytes() const { return 0; }
  virtual float load_factor() const = 0;  // of the index

  // rows: [num_keys] written: each key's row in rows(), or kNoRow. Host memory.
  virtual void Find(const int64_t* keys, int64_t num_keys, int64_t* rows) const = 0;
  virtual RowInfo Info(int64_t row) const = 0;
  // infos: [num_keys] written, for rows in any tier. A key without a row has kNoTier, version -1,
  // and its count in the filter, or -1.
  virtual Status Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const;
  // Appends all keys and their rows, of all tiers, in any order.
  // Exclusive.
  virtual Status ReadAll(KeyedRows* rows) const = 0;

  // Writes the given rows, and makes rows for new keys. Slots that are not given get initial
  // values. Without counts and versions, existing keys keep theirs, and new keys get 0 and -1.
  // Counts above kMaxCount become kMaxCount; if one is negative, nothing is inserted and an error
  // returned. An error, too, if there is no space for all: then each key has its given row, the row
  // that it had, or none. Exclusive.
  virtual Status Insert(const KeyedRowsView& rows, const ParallelFor& parallel_for = SerialFor) = 0;
  // Erases keys, and returns how many had a row. A row is given to another key, with initial values
  // and slots, once no batch in flight has located it. Exclusive.
  virtual int64_t Erase(const int64_t* keys, int64_t num_keys) = 0;
  // Erases the keys that `eviction` chooses, and returns their number. Exclusive.
  virtual int64_t Evict(const Eviction& eviction, int64_t step,
                        const ParallelFor& parallel_for = SerialFor) = 0;
  // The minute of batches from now on, instead of the clock's, for tables that keep their keys'
  // times. Exclusive.
  Status SetTime(int64_t minute);
  int64_t Minute() const;  // since 1970, of now
  // A table that is restored goes on at the time at which it was saved. Exclusive.
  TableTime time() const { return {last_step_, minute_}; }
  void GoOnAt(const TableTime& time);
  virtual BudgetCounts budget_counts() const { return {}; }
  // Keys that were given to a table with a budget had no place.
  virtual void CountWithoutPlace(int64_t /*num_keys*/) {}
  virtual UseCounts use_counts() const { return {}; }  // Exclusive.
  // Returns the keys that a table with a budget has evicted since the last call, with counts and
  // versions, and with values if options().budget says so. Exclusive.
  virtual void TakeEvicted(KeyedRows* /*rows*/) {}
  // Counts these as missed instead. Exclusive.
  virtual void DropEvicted() {}
  // Sets the scores of those keys that have a row; for EvictFirst::kLowestScore. Exclusive.
  virtual Status SetScores(const int64_t* keys, int64_t num_keys, const float* scores);
  virtual void Clear() = 0;                                         // Exclusive.
  virtual void SetAdmissionState(const AdmissionState& state) = 0;  // Exclusive.

  // The followers of the table's changes. Exclusive.
  virtual ChangeLog* changes() = 0;
  // The mark of now. Exclusive.
  virtual ChangeMark Now() const = 0;

  // Takes a snapshot of all rows, or of the changes since the mark of `follower`, which has one. A
  // table has one snapshot at a time. Keys that `eviction` removes are no longer in the table, nor
  // in the snapshot; their rows in host memory and on disk are freed as the snapshot is read, or
  // when the keys are located. Exclusive, as is the end of the snapshot. It takes the time to zero
  // a bit per row and a byte per 512 bytes of a Bloom filter; on a GPU, the time to zero a word per
  // row, to evict, and to copy a filter's counts within the device.
  virtual std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction = {},
                                                 int64_t step = -1, int64_t follower = kSaves) = 0;
  // Has to be called before rows are written while a snapshot is read.
  virtual void BeforeWrite(const int64_t* rows, int64_t num_rows) = 0;

 protected:
  // With the minute of now, where it has none: all tiers evict as of one minute.
  Eviction AsOfNow(Eviction eviction) const {
    if (eviction.minute == 0) eviction.minute = Minute();
    return eviction;
  }
  // A batch is trained in the step.
  void CountStep(int64_t step) {
    if (step > last_step_.load(std::memory_order_relaxed)) last_step_ = step;
  }
  int64_t last_step() const { return last_step_; }

 private:
  std::atomic<int64_t> minute_{0};      // as of TableTime
  std::atomic<int64_t> last_step_{-1};  // as of TableTime
};

// A batch in flight, from construction to destruction.
class TableBatch {
 public:
  explicit TableBatch(EmbeddingTable* table) : table_(table), number_(table->BeginBatch()) {}
  ~TableBatch() { table_->EndBatch(number_); }
  TableBatch(const TableBatch&) = delete;
  TableBatch& operator=(const TableBatch&) = delete;

  int64_t number() const { return number_; }

 private:
  EmbeddingTable* const table_;
  const int64_t number_;
};

}  // namespace group_embedding
