// A table in the memory of a GPU whose rows are found by key.
//
// What is said to be exclusive in embedding_table.h runs on a stream of the table's own: it waits
// for all streams that the table was used on, and returns when it is done. Find, Info and what is
// counted wait likewise. Streams that a table was used on must outlive it.
#pragma once

#include <memory>
#include <string>

#include "table/disk/coldest.h"
#include "table/disk/rows_on_disk.h"
#include "table/embedding_table.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>
#endif

namespace group_embedding {

class DeviceTable : public EmbeddingTable {
 public:
  // Rows that were ever in use; rows() has those too that are there for later.
  virtual int64_t num_rows() const = 0;
  // What is kept of each row, in device memory.
  virtual const RowInfo* infos() const = 0;

  // Makes space for so many keys at once, as if they had come. Exclusive.
  virtual std::string Reserve(int64_t num_keys) = 0;

#if GROUP_EMBEDDING_CUDA
  // As BeforeWrite: of row numbers in device memory, in the order of `stream`.
  virtual std::string BeforeWriteCuda(const int64_t* rows, int64_t num_rows,
                                      cudaStream_t stream) = 0;
#endif
};

#if GROUP_EMBEDDING_CUDA

// How a table's rows are spread over two memories. Rows that the first does not hold lie in
// page-locked host memory and are used there in place. Hot ones change places with colder ones in
// device memory (row_moves.h), so row numbers are good as long as the batch that located them;
// without a batch, until keys are located for training again.
struct DeviceTierOptions {
  // Of rows in device memory, their slots and what is kept of them; 0: all rows are there. What is
  // kept of the others, 40 bytes each, and the index are in device memory beside that. A slot that
  // is made later has fewer of the later rows be there.
  int64_t device_bytes = 0;
  Coldest coldest = Coldest::kLeastFrequent;
};

// On the device that is current. `matrix`: [options.initial.matrix_rows, dim] in host memory, or
// null.
std::unique_ptr<DeviceTable> MakeDeviceTable(const TableOptions& options,
                                             const DeviceTierOptions& tiers, const void* matrix,
                                             std::string* error);

// The same with a third tier, on disk (rows_on_disk.h): where both memories are full, the coldest
// rows go there, many at a time, and come back when their keys are located. options.max_bytes: of
// both memories, `device_bytes`: of the first; greater than 0. What was located since the oldest
// batch in flight began stays in memory, and must fit.
//
// Whoever locates keys waits for the stream as soon as there are rows on disk, or may have to be:
// the host must know which of the keys have no row in memory.
std::unique_ptr<DeviceTable> MakeDiskTieredDeviceTable(const TableOptions& options,
                                                       int64_t device_bytes,
                                                       const DiskTierOptions& disk,
                                                       const void* matrix, std::string* error);

// Some keys of one table, and where their row numbers go. Device memory; `rows` may be `keys`.
struct DeviceKeysToLocate {
  DeviceTable* table;
  const int64_t* keys;  // [num_keys], any numbers; may repeat
  int64_t num_keys;
  int64_t* rows;  // [num_keys]
  // [num_keys] how often each key came, when others have counted; null: once each.
  const int64_t* times = nullptr;
  // [num_keys] as of KeysToLocate.
  int64_t* reads = nullptr;
};

// LocateRowsCpu on the device. Enqueues on `stream` and returns; a few launches for all tables.
// `scratch`: device memory of LocateRowsScratchBytes, in use until the stream has come so far.
//
// New keys get rows in the order of their first places in the requests, those of a table one after
// the other: row numbers are the same on every run. Calls that read may run on other streams at the
// same time as one that trains; those that train follow each other, whatever their streams.
//
// Memory is found before anything is enqueued; where there may be too little for all keys of the
// call, it waits for the stream to see how many came.
int64_t LocateRowsScratchBytes(const DeviceKeysToLocate* requests, int64_t num_requests,
                               Access access);
std::string LocateRowsCuda(const DeviceKeysToLocate* requests, int64_t num_requests, Access access,
                           int64_t step, void* scratch, cudaStream_t stream);

#endif

}  // namespace group_embedding
