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

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/parallel.h"
#include "table/initial_values.h"

namespace group_embedding {

// Decides which keys get a row when they are trained: all, or those seen `min_count` times, counted
// exactly or by a counting Bloom filter. The step that gives a key its row trains the row but reads
// the constant of keys without a row, because a step's outputs depend on earlier steps only.
struct Admission {
  enum class Kind : int32_t { kAll = 0, kCounter = 1, kBloom = 2 };
  Kind kind = Kind::kAll;
  int64_t min_count = 0;
  int64_t num_counters = 0;   // of the Bloom filter
  int32_t num_hashes = 0;     // of the Bloom filter
  int32_t counter_bytes = 8;  // of the Bloom filter: 1, 2, 4 or 8; counters stop at their maximum
};

// Decides which keys an eviction removes.
struct Eviction {
  enum class Kind : int32_t { kNone = 0, kGlobalStep = 1, kL2Weight = 2 };
  Kind kind = Kind::kNone;
  int64_t steps_to_live = 0;  // kGlobalStep: keys not trained for more steps than this
  float l2_weight = 0;        // kL2Weight: keys whose row has sum_j x_j^2 / 2 < l2_weight
};

struct TableOptions {
  std::string name;  // for messages
  int32_t dim = 0;
  DataType dtype = DataType::kFloat32;
  InitialValues initial;
  float no_row_value = 0;  // the constant that a key without a row reads
  Admission admission;
  int64_t max_bytes = 0;  // of rows with their slots and infos; 0: no limit
};

inline bool HasFilter(const TableOptions& options) {
  return options.admission.kind != Admission::Kind::kAll;
}

// An array of an update rule's state: one number per column of each row, or one per row.
struct SlotOptions {
  std::string name;   // such as "adagrad/accumulator"
  int32_t width = 0;  // dim, or 1
  DataType dtype = DataType::kFloat32;
  float initial = 0;
};

// The data of a row beside its values and slots.
struct RowInfo {
  int64_t key;
  int64_t count;    // how often the key was trained; -1: the row belongs to no key
  int64_t version;  // the step at which it was trained last; -1: no step was given
  int64_t clock;    // the number of the batch in which it was trained last
};

inline constexpr int64_t kNoRow = -1;

// The maximum of a count, so that additions cannot overflow.
inline constexpr int64_t kMaxCount = int64_t{1} << 62;

inline constexpr int32_t kNoTier = -1;

struct KeyInfo {
  int32_t tier;  // 0: the row is in rows(); 1: in the tier below, and so on
  int64_t count, version;
};

// Keys and their rows in host memory, as saved, restored, inserted and exported.
struct KeyedRows {
  std::vector<int64_t> keys, counts, versions;
  std::vector<char> values;              // [keys, dim] of the table's type
  std::vector<std::vector<char>> slots;  // per slot of the table, [keys, width]
};

// A view of KeyedRows in the caller's memory. Null pointers: not given.
struct KeyedRowsView {
  int64_t num_keys = 0;
  const int64_t *keys = nullptr, *counts = nullptr, *versions = nullptr;  // [num_keys]
  const char* values = nullptr;                                           // [num_keys, dim]
  std::vector<const char*> slots;  // per slot of the table, [num_keys, width]; may be fewer

  KeyedRowsView() = default;
  KeyedRowsView(const KeyedRows& rows)  // NOLINT: implicit, as for a string_view
      : num_keys(static_cast<int64_t>(rows.keys.size())),
        keys(rows.keys.data()),
        counts(rows.counts.empty() ? nullptr : rows.counts.data()),
        versions(rows.versions.empty() ? nullptr : rows.versions.data()),
        values(rows.values.data()) {
    for (const auto& slot : rows.slots) slots.push_back(slot.empty() ? nullptr : slot.data());
  }
};

// The counts of keys that a table has not admitted.
struct AdmissionState {
  std::vector<int64_t> keys, counts;  // Admission::kCounter
  std::vector<char> counters;         // Admission::kBloom
};

class EmbeddingTable;

// The content of a table at one instant, which can be read while training goes on: before a row
// that has not been read changes, its content is copied.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  virtual const EmbeddingTable& table() const = 0;
  // The number of rows to read.
  virtual int64_t num_rows() const = 0;
  // Appends the rows of [begin, end) that belonged to a key at that instant. Each row is read once.
  virtual void Read(int64_t begin, int64_t end, KeyedRows* rows) = 0;
  // The error of a Read, after which its rows are incomplete; empty: no error.
  virtual std::string error() const { return ""; }
  // Reads the counts on the first call. An early call leaves fewer counts to copy.
  virtual const AdmissionState& admission() = 0;
  // Keys erased since the last full snapshot that was kept; empty for a full one.
  virtual const std::vector<int64_t>& erased() const = 0;
  // After all rows were read: the keys evicted with the snapshot that are not in erased().
  virtual std::vector<int64_t> evicted() const = 0;
  // Called once the snapshot is saved. After a full snapshot, snapshots of changes start from it.
  virtual void Keep() = 0;
};

enum class Access : int32_t {
  kRead = 0,   // a key without a row reads its initial values
  kTrain = 1,  // a key without a row gets one, if it is admitted
};

class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;

  virtual const TableOptions& options() const = 0;

  // All rows that were ever in use, [num_rows, dim]; the pointer never changes.
  virtual Table rows() const = 0;
  virtual int64_t first_row() const = 0;
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
  virtual std::string Slot(const SlotOptions& slot, void** array) = 0;
  virtual const std::vector<SlotOptions>& slots() const = 0;

  virtual int64_t num_keys() const = 0;
  // The number of keys that can have a row, in all tiers, if the table also has `slots`.
  virtual int64_t max_keys(const std::vector<SlotOptions>& slots) const = 0;
  virtual int64_t memory_bytes() const = 0;  // used by rows, slots, infos and the index
  virtual int64_t disk_bytes() const { return 0; }
  virtual float load_factor() const = 0;  // of the index

  // rows: [num_keys] written: each key's row in rows(), or kNoRow. Host memory.
  virtual void Find(const int64_t* keys, int64_t num_keys, int64_t* rows) const = 0;
  virtual RowInfo Info(int64_t row) const = 0;
  // infos: [num_keys] written, for rows in any tier. A key without a row has kNoTier, version -1,
  // and its count in the filter, or -1. Returns an error sentence, or "".
  virtual std::string Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const;
  // Appends all keys and their rows, of all tiers, in any order. Returns an error sentence, or "".
  // Exclusive.
  virtual std::string ReadAll(KeyedRows* rows) const = 0;

  // Writes the given rows, and makes rows for new keys. Slots that are not given get initial
  // values. Without counts and versions, existing keys keep theirs, and new keys get 0 and -1.
  // Counts above kMaxCount become kMaxCount; if one is negative, nothing is inserted and an error
  // returned. Exclusive.
  virtual std::string Insert(const KeyedRowsView& rows,
                             const ParallelFor& parallel_for = SerialFor) = 0;
  // Erases keys, and returns how many had a row. A row is given to another key, with initial values
  // and slots, once no batch in flight has located it. Exclusive.
  virtual int64_t Erase(const int64_t* keys, int64_t num_keys) = 0;
  // Erases the keys that `eviction` chooses, and returns their number. Exclusive.
  virtual int64_t Evict(const Eviction& eviction, int64_t step,
                        const ParallelFor& parallel_for = SerialFor) = 0;
  virtual void Clear() = 0;                                         // Exclusive.
  virtual void SetAdmissionState(const AdmissionState& state) = 0;  // Exclusive.

  // Takes a snapshot of all rows, or of rows changed since the last full snapshot that was kept. A
  // table has one snapshot at a time. Keys that `eviction` removes are no longer in the table, nor
  // in the snapshot; their rows in host memory and on disk are freed as the snapshot is read, or
  // when the keys are located. Exclusive, as is the end of the snapshot. It takes the time to zero
  // a bit per row and a byte per 512 bytes of a Bloom filter; on a GPU, the time to zero a word per
  // row, to evict, and to copy a filter's counts within the device.
  virtual std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction = {},
                                                 int64_t step = -1) = 0;
  // Has to be called before rows are written while a snapshot is read.
  virtual void BeforeWrite(const int64_t* rows, int64_t num_rows) = 0;
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

// Bytes per row of those slots in `more` that are not among `slots`.
inline int64_t BytesOfNewSlots(const std::vector<SlotOptions>& slots,
                               const std::vector<SlotOptions>& more) {
  int64_t bytes = 0;
  for (const SlotOptions& slot : more) {
    const bool is_new = std::none_of(slots.begin(), slots.end(),
                                     [&](const SlotOptions& s) { return s.name == slot.name; });
    if (is_new) bytes += slot.width * SizeOf(slot.dtype);
  }
  return bytes;
}

inline std::string EmbeddingTable::Describe(const int64_t* keys, int64_t num_keys,
                                            KeyInfo* infos) const {
  std::vector<int64_t> rows(num_keys);
  Find(keys, num_keys, rows.data());
  for (int64_t i = 0; i < num_keys; ++i) {
    infos[i] = {kNoTier, -1, -1};
    if (rows[i] == kNoRow) continue;
    const RowInfo info = Info(rows[i]);
    infos[i] = {0, info.count, info.version};
  }
  return "";
}

// Appends the counts and versions that keys have after an Insert without counts and versions.
inline std::string AppendCounts(const EmbeddingTable& table, const int64_t* keys, int64_t num_keys,
                                std::vector<int64_t>* counts, std::vector<int64_t>* versions) {
  std::vector<KeyInfo> infos(num_keys);
  std::string error = table.Describe(keys, num_keys, infos.data());
  for (const KeyInfo& info : infos) {
    counts->push_back(info.tier == kNoTier ? 0 : info.count);
    versions->push_back(info.tier == kNoTier ? -1 : info.version);
  }
  return error;
}

// Copies the arguments of Insert, with counts and versions, for tables that insert step by step.
inline std::string CompleteRows(const EmbeddingTable& table, const KeyedRowsView& given,
                                KeyedRows* rows) {
  auto copy = [&given](const char* from, int64_t width, DataType dtype) {
    return std::vector<char>(from, from + given.num_keys * width * SizeOf(dtype));
  };
  rows->keys.assign(given.keys, given.keys + given.num_keys);
  rows->values = copy(given.values, table.options().dim, table.options().dtype);
  rows->slots.resize(given.slots.size());
  for (size_t s = 0; s < given.slots.size(); ++s) {
    const SlotOptions& slot = table.slots()[s];
    if (given.slots[s] != nullptr) rows->slots[s] = copy(given.slots[s], slot.width, slot.dtype);
  }
  if (given.counts == nullptr) {
    return AppendCounts(table, given.keys, given.num_keys, &rows->counts, &rows->versions);
  }
  rows->counts.resize(given.num_keys);
  std::transform(given.counts, given.counts + given.num_keys, rows->counts.begin(),
                 [](int64_t count) { return std::min(count, kMaxCount); });
  rows->versions.assign(given.versions, given.versions + given.num_keys);
  return "";
}

}  // namespace group_embedding
