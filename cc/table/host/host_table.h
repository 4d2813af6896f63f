// HostTable: a keyed table in host memory.
#pragma once

#include <memory>
#include <string>

#include "core/parallel.h"
#include "table/embedding_table.h"

namespace group_embedding {

// One whose pointers are to host memory.
class HostTable : public EmbeddingTable {};

// `matrix`: [options.initial.matrix_rows, dim] of the table's type, or null if it has none.
// Where it cannot be made, null, and `error` says why.
std::unique_ptr<HostTable> MakeHostTable(const TableOptions& options, const void* matrix,
                                         std::string* error);

// Some keys of one table, and where their row numbers go. `rows` may be `keys`.
struct KeysToLocate {
  HostTable* table;
  const int64_t* keys;  // [num_keys], any numbers; may repeat
  int64_t num_keys;
  int64_t* rows;  // [num_keys]
  // The number from BeginBatch: its rows are not moved until the batch ends. 0: rows are not used
  // after the call. Matters for tables that move rows (disk_tiered_table.h).
  int64_t batch = 0;
  // [num_keys] how often each key came, when others have counted; null: once each.
  const int64_t* times = nullptr;
  // [num_keys] what is read where `rows` is what is trained; null: nobody asks. The two differ
  // where a filter admits a key in this call: it has a row, and is read as one that has none.
  int64_t* reads = nullptr;
};

// Finds the rows of many keys in many tables. With Access::kTrain, keys that are admitted get a
// row, and each key's count grows by its occurrences, in step `step` (-1: no step). All occurrences
// of a key in a call get the same row. A key without a row reads its initial values or, in a table
// with a filter, the constant of keys without a row.
//
// Returns an error sentence, or "" on success. If a table is full, it keeps its rows and stays
// usable; the rows of the call are undefined.
std::string LocateRowsCpu(const KeysToLocate* requests, int64_t num_requests, Access access,
                          int64_t step, const ParallelFor& parallel_for);

// Copies the rows of keys [num_keys], as Access::kRead finds them, to `values` [num_keys, dim] of
// the table's type. Returns as LocateRowsCpu.
std::string ReadRowsCpu(HostTable* table, const int64_t* keys, int64_t num_keys, void* values,
                        const ParallelFor& parallel_for);

}  // namespace group_embedding
