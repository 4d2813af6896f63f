// Lookup and combine of a whole group in one pass: ids -> rows -> one vector per sample.
#pragma once

#include <cstdint>

#include "core/fault.h"
#include "core/group.h"
#include "core/parallel.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>

#include <optional>
#endif

namespace group_embedding {

// The arguments of both passes. Arrays are in host memory; what Table, Feature and Batch point to
// is where the function runs.
struct Group {
  const Table* tables;  // [num_tables]
  int64_t num_tables;
  const Feature* features;  // [num_features]; their samples follow each other and cover the batch
  int64_t num_features;
  Batch batch;
  DataType dtype;  // of rows, outputs and gradients; sums are float32
  InvalidIds invalid_ids;
};

// Writes every feature's output. Returns a fault for a bad id or a wrong row split; outputs are
// then undefined. The caller has checked, with CheckFeatureSplits, where each feature begins and
// ends in the row splits.
Fault GroupLookupCpu(const Group& group, const ParallelFor& parallel_for);

#if GROUP_EMBEDDING_CUDA
// Enqueues one launch on `stream` and returns. scratch: device memory of GroupLookupScratchBytes.
// If tables have rows in host memory, their looked-up rows are first fetched into scratch
// (host_rows.h), in a few more launches.
// fault: receives the first bad id, unless read_zeros is set, or the first row split that decreases
// or lies outside of the batch; null: not needed. A bad id reads zeros. After a bad row split,
// outputs are undefined.
//
// A table with null `rows` is looked up by address: its ids are the addresses of rows in any memory
// that the device reads, aligned to 16 bytes or to the bytes of a row, whichever is less. narrow: a
// 16-bit type; allowed for such a group of float32 without weights and max_norm. Addresses plus
// kNarrowRowBit are then those of rows in that type.
inline constexpr int64_t kNarrowRowBit = 1;
int64_t GroupLookupScratchBytes(const Group& group);
cudaError_t GroupLookupCuda(const Group& group, void* scratch, Fault* fault, cudaStream_t stream,
                            std::optional<DataType> narrow = std::nullopt);
#endif

}  // namespace group_embedding
