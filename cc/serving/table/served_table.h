// ServedTable: the rows of a table while a model answers requests, one for the whole process.
//
// Rows lie in one array that never moves, and a lookup gets row numbers, as from any keyed table.
// A version is the base, which all versions share, and an overlay: the rows that one delta changes.
//   version n     = base + overlay n
//   version n + 1 = base with overlay n merged + overlay n + 1
// Rows of an overlay are rows of the array that no key of the base has. Merging gives them to the
// keys of the base; where rows have no keys (a table by row number) it copies them. Nobody may read
// a version before n while overlay n is merged; readers of n find its keys in the overlay.
//
// The base of a small table by row number lies outside of the array, beside those of other small
// tables, as lookups of many small tables in pages of 4 KB mostly wait for addresses. Its rows have
// numbers by which they are found from the array's begin all the same.
//
// The array begins with rows that belong to no key: [0, matrix_rows) initial values of keys, and
// the constant that a key without a row reads.
//
// A tiered table has the rows of its base in LowerRows, and the array is a cache of some of them.
// Locate says which keys are not in memory, and Fetch brings their rows. A key that is nowhere is
// remembered as one without a row. Rows of deltas stay in memory, and so do erased keys: the lower
// rows have the base alone. A row that leaves the cache, or was read for one request alone, is used
// again once nobody reads it.
//
// Thread safety: any number of threads may call Locate and Fetch and read rows, as Readers of a
// tiered table, and one other thread the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/group.h"
#include "core/row_format.h"
#include "core/status.h"
#include "serving/lower/deadline.h"
#include "serving/lower/job_threads.h"
#include "serving/lower/lower_read.h"
#include "serving/lower/lower_rows.h"
#include "serving/table/device_copies.h"
#include "serving/table/grace_periods.h"
#include "serving/table/large_page_arena.h"
#include "serving/table/served_index.h"
#include "serving/table/tier_counts.h"
#include "table/file/table_file.h"
#include "table/memory.h"

namespace group_embedding {

struct ServedTableOptions {
  std::string name;   // as the trainer's
  bool keyed = true;  // false: a table by row number
  int32_t dim = 0;
  DataType dtype = DataType::kFloat32;  // as trained
  RowFormat format = RowFormat::kFloat32;
  // For keyed tables, as in TableOptions.
  int64_t matrix_rows = 0;
  bool has_filter = false;
  float no_row_value = 0;
  int64_t max_rows = 0;                    // of tables by row number: their rows
  bool device_reads = false;               // rows are where a GPU reads them in place
  LargePageArena* small_tables = nullptr;  // outlives the table; null: rows are in the array
};

// Rows of one delta, in the type that the table was trained in. Erased keys come first: a key may
// be erased and have a row. Keys of a table by row number are row numbers.
struct RowChanges {
  std::vector<int64_t> erased;
  std::vector<int64_t> keys;
  std::vector<char> values;  // [keys, dim]
};

// key -> row of the array, for all keys that one delta changes. An erased key has the row that a
// key without a row reads.
class Overlay {
 public:
  explicit Overlay(int64_t num_keys) : index_(num_keys) {
    while (kBitsPerKey * num_keys > static_cast<int64_t>(64 * filter_.size())) {
      filter_.resize(2 * filter_.size());
    }
  }

  int64_t num_keys() const { return index_.size(); }

 private:
  friend class ServedTable;
  static constexpr int64_t kBitsPerKey = 16;

  void Set(int64_t key, int64_t row) {
    const uint64_t bit = BitOf(ServedIndex::HashOf(key));
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
    index_.Set(key, row);
  }
  // The key's row, or ServedIndex::kNone, as for nearly all keys: most are found to be absent by
  // the filter, which stays in the cache.
  int64_t Find(int64_t key, uint64_t hash) const {
    const uint64_t bit = BitOf(hash);
    if ((filter_[bit / 64] >> bit % 64 & 1) == 0) return ServedIndex::kNone;
    return index_.Find(key, hash);
  }
  // The filter has a power of two of words, and takes other bits of the hash than the index.
  uint64_t BitOf(uint64_t hash) const { return (hash >> 24) & (64 * filter_.size() - 1); }

  ServedIndex index_;
  std::vector<uint64_t> filter_{0};
  std::vector<int64_t> rows_;  // of the array, that the overlay has taken
  bool merged_ = false;        // its rows belong to the base
};

// The threads of a model's tiered tables. They end before the tables do.
struct TierThreads {
  JobThreads reads{16};   // of the tier below, which may hang
  JobThreads inserts{1};  // into memory
};

class ServedTable {
 public:
  // The row of a key that is not in memory, until Fetch.
  static constexpr int64_t kNotInMemory = std::numeric_limits<int64_t>::min();

  // Reads a table, for its life. A table that is not tiered needs none.
  class Reader {
   public:
    explicit Reader(const ServedTable* table) {
      if (table->lower_ != nullptr) reader_.emplace(&table->grace_);
    }

   private:
    std::optional<GracePeriods::Reader> reader_;
  };

  // `matrix`: [matrix_rows, dim] of the trained type, or null.
  ServedTable(const ServedTableOptions& options, const void* matrix, Status* error);

  const ServedTableOptions& options() const { return options_; }
  // [num_rows, dim] in `format`; the pointer never changes.
  const char* rows() const { return rows_->data(); }
  int64_t row_bytes() const { return row_bytes_; }
  int64_t num_rows() const { return num_rows_; }  // of the array; for the thread that changes it
  int64_t num_keys() const;
  int64_t bytes() const;  // of rows and index; in a tiered table for any thread

  // Before the first reader: adds rows, or erases keys, of the base of a keyed table. `keys`:
  // [num_keys]; `values`: [num_keys, dim] of the trained type. `are_changes`: the keys may have
  // rows. `deadline`: of `lower`, in a tiered table.
  Status Load(const int64_t* keys, int64_t num_keys, const char* values, bool are_changes,
              const Deadline& deadline = Deadline::Never());
  // The rows are in the table's format.
  Status LoadEncoded(const EncodedRows& encoded, bool are_changes,
                     const Deadline& deadline = Deadline::Never());
  Status Erase(const int64_t* keys, int64_t num_keys, const Deadline& deadline = Deadline::Never());
  // Before the first Load: makes the table tiered. Load, LoadEncoded and Erase fill `lower`, if it
  // is not complete yet.
  void Attach(std::unique_ptr<LowerRows> lower) { lower_ = std::move(lower); }
  LowerRows* lower() const { return lower_.get(); }
  // Before the first reader: how many rows of the base are kept in memory, at least 1. `threads`:
  // null: requests do all by themselves.
  void StartCache(int64_t max_rows, const TierOptions& tiers, TierThreads* threads);
  TierCounts tier_counts() const;
  const Latencies& lower_seconds() const { return lower_seconds_; }  // of reads of the tier below
  // Takes rows of the base, and absent keys, out of memory for which nobody asked in
  // TierOptions::expire. `second`: CacheSecond(), or a later one.
  void Expire(int64_t second);
  static int64_t CacheSecond();  // now
  // Before the first reader: copies of rows, which follow the content of rows.
  void SetCopies(std::unique_ptr<DeviceCopies> copies) { copies_ = std::move(copies); }
  // Before the first Load: the number of keys that will come.
  void Reserve(int64_t num_keys);
  // Before the first reader: all rows of a table by row number, [max_rows, dim].
  void LoadAll(const char* values);
  void LoadAllEncoded(const char* rows);  // [max_rows] in the table's format
  // Before the first reader: the matrix of initial values, as in the constructor.
  void WriteInitialRows(const void* matrix);

  // rows: [num_keys] written, the row of each key in the version of `overlay` (null: the base); may
  // be `keys`, unless the table is tiered. In a table by row number, a number outside [0, max_rows)
  // becomes -1, or 2^62 if it is too large, so that a lookup tells the two apart. Returns how many
  // became kNotInMemory.
  int64_t Locate(const Overlay* overlay, const int64_t* keys, int64_t num_keys,
                 int64_t* rows) const;
  // Replaces each rows[p] of `positions` that is kNotInMemory by the row of keys[p]. On an error,
  // `is_late` says whether the deadline is over.
  Status Fetch(const int64_t* keys, std::vector<int64_t> positions, Deadline deadline,
               int64_t* rows, bool* is_late);

  // Writes the changes to rows that no reader has. An error makes no overlay.
  Status Stage(const RowChanges& changes, std::unique_ptr<Overlay>* overlay);
  // Moves an overlay into the base. Nobody may be reading an earlier version.
  void Merge(Overlay* overlay);
  // Frees what an overlay has, once nobody reads it, and former parts of the index. Not merged: the
  // rows of the overlay are free again. Null is allowed.
  void Drop(std::unique_ptr<Overlay> overlay);

 private:
  static constexpr int64_t kTooLarge = int64_t{1} << 62;

  int64_t DefaultRow(int64_t key) const {
    const bool reads_initial = options_.matrix_rows > 0 && !options_.has_filter;
    return reads_initial ? MatrixRow(key, options_.matrix_rows) : options_.matrix_rows;
  }
  char* Row(int64_t row) const { return rows_->data() + row * row_bytes_; }
  void Write(const char* values, int64_t row);
  // Memory for the base of a small table by row number; null: it lies in the array.
  char* TakeSmall() const;
  // As of DeviceCopies.
  void Forget(const std::vector<int64_t>& rows) const {
    if (copies_ != nullptr) copies_->Forget(rows.data(), static_cast<int64_t>(rows.size()));
  }
  void Refresh(const std::vector<int64_t>& rows) const {
    if (copies_ != nullptr) copies_->Refresh(rows.data(), static_cast<int64_t>(rows.size()));
  }
  void Free(const std::vector<int64_t>& rows) {
    Forget(rows);
    free_.insert(free_.end(), rows.begin(), rows.end());
  }
  Status Take(int64_t count, std::vector<int64_t>* rows);
  // moved: [key, row of the array] of an overlay.
  void MergeKeys(const std::vector<std::pair<int64_t, int64_t>>& moved);
  void MergeRowNumbers(const std::vector<std::pair<int64_t, int64_t>>& moved);
  void RestAfter(int64_t row) const;
  void LocateRowNumbers(const Overlay* overlay, const int64_t* keys, int64_t num_keys,
                        int64_t* rows) const;
  int64_t LocateInCache(const Overlay* overlay, const int64_t* keys, int64_t num_keys,
                        int64_t* rows) const;

  // A tiered table's.
  int64_t MarkSecond() const;
  int64_t LongestMark() const;
  Status ReadLower(LowerRead* read, const Deadline& deadline);
  Status StartRead(std::vector<int64_t> wanted, std::shared_ptr<LowerRead>* read);
  void Place(LowerRead* read, Insert how, std::vector<int64_t>* rows);
  void Cache(const std::vector<int64_t>& keys, bool are_read, std::vector<int64_t>* rows);
  void CacheLater(const std::vector<int64_t>& keys, const std::vector<int64_t>& rows);
  // A tiered table's; mutex_ is held.
  void MergeIntoCache(const Overlay& overlay);
  void EvictOldest();
  void Evict(const std::vector<int64_t>& keys);
  void Retire(const std::vector<int64_t>& rows);
  void Reclaim();

  const ServedTableOptions options_;
  const int64_t row_bytes_, trained_row_bytes_;
  std::unique_ptr<Memory> rows_;
  std::unique_ptr<DeviceCopies> copies_;
  std::unique_ptr<ServedIndex> index_;  // of the base; keyed tables only
  int64_t num_rows_ = 0;                // of the array, in use or free
  int64_t first_ = 0;                   // the row of row number 0 of a table by row number
  std::vector<int64_t> free_;

  // What was taken away in an epoch: rows, and how many parts of the index.
  struct Retired {
    int64_t epoch = 0;
    std::vector<int64_t> rows;
    size_t num_parts = 0;
  };

  std::shared_ptr<LowerRows> lower_;  // of a tiered table
  TierOptions tiers_;
  TierThreads* threads_ = nullptr;
  int64_t max_cached_ = std::numeric_limits<int64_t>::max();
  mutable std::mutex mutex_;  // of index_, num_rows_, free_ and what follows, in a tiered table
  mutable GracePeriods grace_;
  std::vector<Retired> retired_;  // the oldest first
  int64_t num_cached_ = 0;        // rows of the base, in the array and the index
  int64_t num_absent_ = 0;        // keys that were nowhere, in the index
  int64_t num_later_ = 0;         // keys that CacheLater has
  size_t num_retired_parts_ = 0;  // of the index, in retired_
  int64_t num_scanned_ = 0;       // cells, in this round of EvictOldest over all of them
  int64_t round_began_ = 0;       // second
  // Rows are marked with the last second that is a multiple of this: a mark is a write to memory
  // that other cores read.
  std::atomic<int64_t> mark_seconds_{1};
  TierCounts counts_;  // but for what follows, which needs no mutex
  mutable SharedCount num_in_memory_, num_below_, num_absent_keys_;
  Latencies lower_seconds_;
};

}  // namespace group_embedding
