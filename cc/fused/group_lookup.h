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

// Writes every feature's output. On a fault, which is a bad id or a wrong row split, outputs are
// undefined. Where features begin and end in the row splits, the caller has checked
// (CheckFeatureSplits).
Fault GroupLookupCpu(const Group& group, const ParallelFor& parallel_for);

#if GROUP_EMBEDDING_CUDA
// Enqueues on `stream` and returns; one launch. `scratch`: device memory of
// GroupLookupScratchBytes. A bad id reads zeros, and unless read_zeros is set it is stored through
// `fault`; so are row splits that fall or lie outside of the batch, of which the samples mean
// nothing. fault: null where nobody asks. The ids of a table whose `rows` are null are the
// addresses of its rows, in any memory that the device reads, each aligned to 16 bytes or to the
// bytes of a row, whichever is less. narrow: of such a group of float32, without weights and
// without a max_norm, a type of 16 bits in which some of the rows are: their ids are the addresses
// plus kNarrowPlace.
inline constexpr int64_t kNarrowPlace = 1;
int64_t GroupLookupScratchBytes(int64_t num_tables, int64_t num_features);
cudaError_t GroupLookupCuda(const Group& group, void* scratch, Fault* fault, cudaStream_t stream,
                            std::optional<DataType> narrow = std::nullopt);
#endif

}  // namespace group_embedding
