// A table whose rows are found by key: any 64-bit number, seen when it is seen.
//
// Every key has a row number, and rows of all kinds lie in one array that never moves (memory.h).
// So a batch of keys is located once, and from then on the lookup, its gradient and the update of a
// keyed table are those of any other: a pointer and row numbers. The array begins with rows that
// are no key's, [0, first_row):
//   [0, matrix_rows)  what keys start as, if they start as rows of a matrix
//   matrix_rows       the constant that a key reads which has no row (yet)
// They are read and never updated.
//
// Thread safety: any number of Locate, readers of rows and, for different rows, writers of rows at
// a time. Everything said to be exclusive must run alone; the caller has the lock.
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

// Which keys get a row when they are trained: those seen `min_count` times, counted exactly or by a
// counting Bloom filter. The step that gives a key its row trains the row, and reads the constant
// of keys without one: what it reads depends on the steps before.
struct Admission {
  enum class Kind : int32_t { kAll = 0, kCounter = 1, kBloom = 2 };
  Kind kind = Kind::kAll;
  int64_t min_count = 0;
  int64_t num_counters = 0;   // of the Bloom filter
  int32_t num_hashes = 0;     // of the Bloom filter
  int32_t counter_bytes = 8;  // of the Bloom filter: 1, 2, 4 or 8; counters stop at their maximum
};

// Which keys an eviction removes.
struct Eviction {
  enum class Kind : int32_t { kNone = 0, kGlobalStep = 1, kL2Weight = 2 };
  Kind kind = Kind::kNone;
  int64_t steps_to_live = 0;  // kGlobalStep: those not trained for more steps than that
  float l2_weight = 0;        // kL2Weight: those whose row has sum_j x_j^2 / 2 < l2_weight
};

struct TableOptions {
  std::string name;  // for messages
  int32_t dim = 0;
  DataType dtype = DataType::kFloat32;
  InitialValues initial;
  float no_row_value = 0;  // the constant that a key reads which has no row
  Admission admission;
  int64_t max_bytes = 0;  // of rows, slots and what is kept of each; 0: as much as there is
};

inline bool HasFilter(const TableOptions& options) {
  return options.admission.kind != Admission::Kind::kAll;
}

// One number per column of each row, or one per row, kept for an update rule.
struct SlotOptions {
  std::string name;   // such as "adagrad/accumulator"
  int32_t width = 0;  // dim, or 1
  DataType dtype = DataType::kFloat32;
  float initial = 0;
};

// What is kept of each row beside its values.
struct RowInfo {
  int64_t key;
  int64_t count;    // how often the key was trained; -1: the row is no key's
  int64_t version;  // the step at which it was trained last; -1: no step was given
  int64_t clock;    // the number of the batch in which it was trained last
};

inline constexpr int64_t kNoRow = -1;

// Counts stop here: what adds to them need not care for overflow.
inline constexpr int64_t kMaxCount = int64_t{1} << 62;

inline constexpr int32_t kNoTier = -1;

struct KeyInfo {
  int32_t tier;  // 0: its row is in rows(); 1: in the tier below, and so on
  int64_t count, version;
};

// Rows of keys in host memory, one after the other: what is saved, restored, inserted, exported.
struct KeyedRows {
  std::vector<int64_t> keys, counts, versions;
  std::vector<char> values;              // [keys, dim] of the table's type
  std::vector<std::vector<char>> slots;  // per slot of the table, [keys, width]
};

// The same where somebody else has them. Null: not given.
struct KeyedRowsView {
  int64_t num_keys = 0;
  const int64_t *keys = nullptr, *counts = nullptr, *versions = nullptr;  // [num_keys]
  const char* values = nullptr;                                           // [num_keys, dim]
  std::vector<const char*> slots;  // per slot of the table, [num_keys, width]; may be fewer

  KeyedRowsView() = default;
  KeyedRowsView(const KeyedRows& rows)  // NOLINT: implicit, as of a string_view
      : num_keys(static_cast<int64_t>(rows.keys.size())),
        keys(rows.keys.data()),
        counts(rows.counts.empty() ? nullptr : rows.counts.data()),
        versions(rows.versions.empty() ? nullptr : rows.versions.data()),
        values(rows.values.data()) {
    for (const auto& slot : rows.slots) slots.push_back(slot.empty() ? nullptr : slot.data());
  }
};

// What a table counts of keys that it has not admitted.
struct AdmissionState {
  std::vector<int64_t> keys, counts;  // Admission::kCounter
  std::vector<char> counters;         // Admission::kBloom
};

class EmbeddingTable;

// What a table held at one instant, read while the table is trained on: whatever changes a row that
// has not been read puts its former content aside first.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  virtual const EmbeddingTable& table() const = 0;
  // Row numbers to go through.
  virtual int64_t num_rows() const = 0;
  // Appends what belonged to keys at that instant among rows [begin, end). Each row once.
  virtual void Read(int64_t begin, int64_t end, KeyedRows* rows) = 0;
  // What went wrong in Read, in words, or nothing: the rows that it gave are not all.
  virtual std::string error() const { return ""; }
  // Reads it, the first time: the sooner, the less of it is put aside.
  virtual const AdmissionState& admission() = 0;
  // Keys erased since the last full snapshot that was kept; empty for a full one.
  virtual const std::vector<int64_t>& erased() const = 0;
  // Once all rows were read: the keys that were evicted with the snapshot, if not in erased().
  virtual std::vector<int64_t> evicted() const = 0;
  // It has been written down: if it is a full one, the next snapshots of changes begin here.
  virtual void Keep() = 0;
};

enum class Access : int32_t {
  kRead = 0,   // a key without a row reads what it would start as
  kTrain = 1,  // it gets a row, if it is admitted
};

class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;

  virtual const TableOptions& options() const = 0;

  // All rows that were ever in use, [num_rows, dim]; the pointer never changes.
  virtual Table rows() const = 0;
  virtual int64_t first_row() const = 0;
  // The matrix whose rows keys start as, [initial.matrix_rows, dim], to and from host memory. The
  // latter is exclusive.
  virtual void ReadInitialRows(void* rows) const = 0;
  virtual void WriteInitialRows(const void* rows) = 0;

  // Batches in flight: rows of keys erased since the oldest of them began are not given to others.
  // A batch begins before its keys are located and ends when its row numbers are used no more.
  // Both may be called at any time.
  virtual int64_t BeginBatch() = 0;
  virtual void EndBatch(int64_t batch) = 0;

  // The array of a slot, which is made where there is none of that name. An error if there is one
  // of another type or width. Exclusive.
  virtual std::string Slot(const SlotOptions& slot, void** array) = 0;
  virtual const std::vector<SlotOptions>& slots() const = 0;

  virtual int64_t num_keys() const = 0;
  // How many keys can have a row, in all tiers, if it has those slots too.
  virtual int64_t max_keys(const std::vector<SlotOptions>& slots) const = 0;
  virtual int64_t memory_bytes() const = 0;  // used: rows, slots, what is kept of each, the index
  virtual int64_t disk_bytes() const { return 0; }
  virtual float load_factor() const = 0;  // of the index

  // Rows of `keys` [num_keys] that have one in rows(), else kNoRow. Host memory.
  virtual void Find(const int64_t* keys, int64_t num_keys, int64_t* rows) const = 0;
  // What is kept of a row.
  virtual RowInfo Info(int64_t row) const = 0;
  // The same of keys, in whatever tier their rows are. A key without one has kNoTier, no version,
  // and the count of a filter, or -1. Returns what went wrong, in words, or nothing.
  virtual std::string Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const;
  // Appends the content of all keys, in whatever tier, in no order. Exclusive. Returns as Describe.
  virtual std::string ReadAll(KeyedRows* rows) const = 0;

  // Gives every key the content that `rows` has for it; slots not in it start anew. Without counts
  // and versions in `rows`, keys that have a row keep theirs, and others start with 0 and -1.
  // Counts above kMaxCount are that; one that is negative is an error, and nothing is inserted.
  // Exclusive.
  virtual std::string Insert(const KeyedRowsView& rows,
                             const ParallelFor& parallel_for = SerialFor) = 0;
  // Their rows may be given to other keys once no batch that located them is held; a row that is
  // given away starts anew, and so do its slots. Returns how many keys there were. Exclusive.
  virtual int64_t Erase(const int64_t* keys, int64_t num_keys) = 0;
  // Exclusive. Returns how many keys were erased.
  virtual int64_t Evict(const Eviction& eviction, int64_t step,
                        const ParallelFor& parallel_for = SerialFor) = 0;
  virtual void Clear() = 0;                                         // Exclusive.
  virtual void SetAdmissionState(const AdmissionState& state) = 0;  // Exclusive.

  // A snapshot of all rows, or of those changed since the last full one that was kept; one at a
  // time. Keys that `eviction` removes are not in it, nor in the table from now on; those in host
  // memory and on disk are found as the snapshot is read, or when somebody asks for them.
  // Exclusive, as is the end of the snapshot, and takes as long as zeroing a bit per row and a byte
  // per 512 bytes of a Bloom filter; on a GPU, as a word per row, Evict of the rows there, and
  // copying within the device what a filter counted.
  virtual std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction = {},
                                                 int64_t step = -1) = 0;
  // To be called before rows are written, if a snapshot is being read.
  virtual void BeforeWrite(const int64_t* rows, int64_t num_rows) = 0;
};

// A batch in flight as long as this object is there.
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

// Appends the counts and versions that keys have after an Insert that is given none.
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

// Copies what Insert was given, with counts and versions, for tables that need time with it.
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
