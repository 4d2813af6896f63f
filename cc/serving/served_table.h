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
// The array begins with rows that belong to no key: [0, matrix_rows) initial values of keys, and
// the constant that a key without a row reads.
//
// Thread safety: any number of threads may call Locate and read rows, and one other thread the
// rest.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/row_format.h"
#include "core/status.h"
#include "serving/served_index.h"
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
  int64_t max_rows = 0;  // of tables by row number: their rows
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
  explicit Overlay(int64_t num_keys) : index_(num_keys) {}

  int64_t num_keys() const { return index_.size(); }

 private:
  friend class ServedTable;
  ServedIndex index_;
  std::vector<int64_t> rows_;  // of the array, that the overlay has taken
  bool merged_ = false;        // its rows belong to the base
};

class ServedTable {
 public:
  // `matrix`: [matrix_rows, dim] of the trained type, or null.
  ServedTable(const ServedTableOptions& options, const void* matrix, Status* error);

  const ServedTableOptions& options() const { return options_; }
  // [num_rows, dim] in `format`; the pointer never changes.
  const char* rows() const { return rows_->data(); }
  int64_t row_bytes() const { return row_bytes_; }
  int64_t num_keys() const;
  int64_t bytes() const;  // of rows and index

  // Before the first reader: adds rows, or erases keys, of the base of a keyed table. `keys`:
  // [num_keys]; `values`: [num_keys, dim] of the trained type.
  Status Load(const int64_t* keys, int64_t num_keys, const char* values);
  Status LoadEncoded(const EncodedRows& encoded);  // in the table's format
  void Erase(const int64_t* keys, int64_t num_keys);
  // Before the first Load: the number of keys that will come.
  void Reserve(int64_t num_keys);
  // Before the first reader: all rows of a table by row number, [max_rows, dim].
  void LoadAll(const char* values);
  void LoadAllEncoded(const char* rows);  // [max_rows] in the table's format
  // Before the first reader: the matrix of initial values, as in the constructor.
  void WriteInitialRows(const void* matrix);

  // rows: [num_keys] written, the row of each key in the version of `overlay` (null: the base); may
  // be `keys`. In a table by row number, a number outside [0, max_rows) becomes -1, or 2^62 if it
  // is too large, so that a lookup tells the two apart.
  void Locate(const Overlay* overlay, const int64_t* keys, int64_t num_keys, int64_t* rows) const;

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
  Status Take(int64_t count, std::vector<int64_t>* rows);
  void LocateRowNumbers(const Overlay* overlay, const int64_t* keys, int64_t num_keys,
                        int64_t* rows) const;

  const ServedTableOptions options_;
  const int64_t row_bytes_, trained_row_bytes_;
  std::unique_ptr<Memory> rows_;
  std::unique_ptr<ServedIndex> index_;  // of the base; keyed tables only
  int64_t num_rows_ = 0;                // of the array, in use or free
  std::vector<int64_t> free_;
};

}  // namespace group_embedding
