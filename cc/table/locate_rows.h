// HostTable and LocateRowsCpu: the rows of many keys in many tables in host memory, found in one
// call by all threads.
//
// A table that is only read has to implement no more than HostTable. device/device_table.h has the
// call for tables in the memory of a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/parallel.h"
#include "core/status.h"
#include "table/table_options.h"

namespace group_embedding {

class HostTable;

enum class Access : int32_t {
  kRead = 0,   // a key without a row reads its initial values
  kTrain = 1,  // a key without a row gets one, if it is admitted
};

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
  // False: nobody looks the keys up, such as where their rows are for a later batch, which locates
  // them again.
  bool is_counted = true;
};

// One table's share of a call, which runs in steps. A step has tasks, which run at the same time,
// beside those of the same step of other tables; the next step begins when all are done.
// After an error no further step begins.
class RowLocator {
 public:
  virtual ~RowLocator() = default;
  virtual int num_steps() const = 0;
  virtual int64_t num_tasks(int step) const = 0;
  // A guess of the nanoseconds that all tasks of the step take.
  virtual int64_t cost(int step) const = 0;
  // Runs alone, for one table after another, in an order that all calls share: a lock that is taken
  // here may be held until the locator goes.
  virtual Status BeginStep(int /*step*/, const ParallelFor&) { return {}; }
  virtual Status RunTask(int step, int64_t task) = 0;
  // Called after the last step, if no table had an error.
  virtual void End() {}
};

// What LocateRowsCpu and ReadRows need of a table. Thread safety: as of EmbeddingTable.
class HostTable {
 public:
  virtual ~HostTable() = default;
  virtual const TableOptions& options() const = 0;
  // All rows, [num_rows, dim]; the pointer never changes.
  virtual Table rows() const = 0;
  // Locates the keys of `requests`, all of this table, as LocateRowsCpu says.
  virtual std::unique_ptr<RowLocator> Locate(std::vector<KeysToLocate> requests, Access access,
                                             int64_t step) = 0;
  // Copies the rows of keys [num_keys], as Access::kRead finds them, to `values` [num_keys, dim] of
  // the table's type. A table that moves rows overrides it.
  virtual Status ReadRows(const int64_t* keys, int64_t num_keys, void* values,
                          const ParallelFor& parallel_for);
};

// Finds the rows of many keys in many tables. With Access::kTrain, keys that are admitted get a
// row, and each key's count grows by its occurrences, in step `step` (-1: no step). All occurrences
// of a key in a call get the same row. A key without a row reads its initial values or, in a table
// with a filter, the constant of keys without a row.
//
// If a table is full, it keeps its rows and stays
// usable; the rows of the call are undefined.
Status LocateRowsCpu(const KeysToLocate* requests, int64_t num_requests, Access access,
                     int64_t step, const ParallelFor& parallel_for);

}  // namespace group_embedding
