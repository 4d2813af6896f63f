// Keyed tables in the memory of a GPU: how they are made, located and written. DeviceHash is what
// kernels see of a table, as EmbeddingTable::device() returns it.
//
// Methods that embedding_table.h calls exclusive run on a stream of the table's own. They wait for
// all streams that the table was used on, and return when they are done. Find, Info and the methods
// that return counts wait as well. Streams that a table was used on must outlive it.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "table/disk/cache_strategy.h"
#include "table/disk/rows_on_disk.h"
#include "table/embedding_table.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>
#endif

namespace group_embedding {

class DeviceHash;

#if GROUP_EMBEDDING_CUDA

// The division of a table's rows between device memory and page-locked host memory, where kernels
// use them in place. Hot rows in host memory are exchanged with cold rows in device memory
// (row_moves.h). So row numbers are valid until the batch that located them ends or, without a
// batch, until keys are located for training again or rows are brought (PrefetchRowsCuda).
struct DeviceTierOptions {
  // Bytes of rows in device memory, with their slots and infos; 0: all rows are there. In addition,
  // device memory holds the index, and 40 bytes for each row in host memory. A slot made later
  // leaves space for fewer new rows.
  int64_t device_bytes = 0;
  CacheStrategy cache_strategy = CacheStrategy::kLeastFrequent;
  bool has_disk = false;  // below both
};

// Makes a table on the current device. matrix: [options.initial.matrix_rows, dim] in host memory,
// or null.
std::unique_ptr<EmbeddingTable> MakeDeviceTable(const TableOptions& options,
                                                const DeviceTierOptions& tiers, const void* matrix,
                                                Status* error);

// Makes a table with a third tier on disk (rows_on_disk.h). When both memories are full, cold rows
// move to disk, many at a time; they return when their keys are located. options.max_bytes: the
// size of both memories; device_bytes: that of device memory; both greater than 0. Rows located
// since the oldest batch in flight began stay in memory, which has to hold them.
//
// Once rows are on disk, or may have to be, locating waits for the stream: the host needs to know
// which keys have no row in memory.
std::unique_ptr<EmbeddingTable> MakeDiskTieredDeviceTable(const TableOptions& options,
                                                          int64_t device_bytes,
                                                          const DiskTierOptions& disk,
                                                          const void* matrix, Status* error);

// Keys of one table, and where their row numbers are written. Device memory; `rows` may be `keys`.
struct DeviceKeysToLocate {
  DeviceHash* table;
  const int64_t* keys;  // [num_keys], any numbers; may repeat
  int64_t num_keys;
  int64_t* rows;  // [num_keys]
  // [num_keys] occurrences of each key, if the caller has counted them; null: one each.
  const int64_t* times = nullptr;
  // [num_keys] as in KeysToLocate.
  int64_t* reads = nullptr;
  int64_t batch = 0;  // as in KeysToLocate: the call's own batch; 0: it has none
};

// LocateRowsCpu on the device. Enqueues on `stream` and returns; a few launches for all tables.
// scratch: device memory of LocateRowsScratchBytes, in use until the kernels have run.
//
// New keys of a table get rows in the order of their first positions in the requests, so that row
// numbers are the same on every run. Calls that read may run on other streams beside a call that
// trains; calls that train run one after the other, on different streams too.
//
// Memory is allocated before kernels are enqueued. If it may be too little for all keys of the
// call, the call waits for the stream to learn how many keys are new. A table with a budget needs
// no more than the budget's rows; it evicts on `stream`, and the host waits for nothing.
int64_t LocateRowsScratchBytes(const DeviceKeysToLocate* requests, int64_t num_requests,
                               Access access);
Status LocateRowsCuda(const DeviceKeysToLocate* requests, int64_t num_requests, Access access,
                      int64_t step, void* scratch, cudaStream_t stream);

// Brings rows of the next batch from host memory to device memory (prefetch_rows.h), while the
// device goes on with what `stream` is given. A hint: results stay as they are. Tables whose rows
// are all in one memory are passed over, and keys without a row. `rows`, `times` and `reads` are
// not used. scratch: as of LocateRowsCuda, of LocateRowsScratchBytes to read.
//
// Rows of the keys that are on disk are then brought to memory by a thread of the host, table by
// table: it awaits the device, and calls PrefetchFromDisk until that returns false.
Status PrefetchRowsCuda(const DeviceKeysToLocate* requests, int64_t num_requests, void* scratch,
                        cudaStream_t stream);
// Whether there is something to do for such a thread.
bool HasRowsToPrefetch(const DeviceHash& table);
// Waits for what streams were given until PrefetchRowsCuda was called.
void AwaitRowsToPrefetch(const DeviceHash& table);
// Brings some rows, and returns whether there may be more. It waits for nothing that streams were
// given since PrefetchRowsCuda was called, and may be called where keys may be located. Locating
// brings the rows that are still to come first. An error ends it: the call that locates the keys
// meets it, too.
bool PrefetchFromDisk(DeviceHash* table);

// EmbeddingTable::BeforeWrite with row numbers in device memory; enqueues on `stream`.
Status BeforeWriteCuda(DeviceHash* table, const int64_t* rows, int64_t num_rows,
                       cudaStream_t stream);

// Allocates memory for `num_keys` keys. Exclusive.
Status ReserveKeys(DeviceHash* table, int64_t num_keys);
// The number of rows that were ever in use: rows() includes rows allocated for later keys.
int64_t NumRowsInUse(const DeviceHash& table);
// [rows] in device memory.
const RowInfo* RowInfos(const DeviceHash& table);

#endif

}  // namespace group_embedding
