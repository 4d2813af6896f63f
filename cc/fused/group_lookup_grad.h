// The backward pass of a group: output gradients -> one gradient per looked-up row. The rows of
// each table are unique and ascending, and results are the same bits on every run.
//
// There are two steps, because the number of unique rows is known only after sorting:
//   SortRows    sorts the ids of the batch by (table, row), stably, and counts the unique rows
//   ReduceRows  writes, for every unique row, the weighted sum of its samples' output gradients
// and an independent one:
//   WeightGrad  the gradient of each id's weight
// Ids that the forward pass left out, or read as zeros, have no gradient. A feature whose output
// (here its gradient) is null has none either.
#pragma once

#include <cstdint>

#include "fused/group_lookup.h"
#include "fused/sort_rows.h"

namespace group_embedding {

// Positions are 32-bit: a batch holds fewer than 2^32 ids and samples; ReduceRows of a larger one
// is refused by its callers.
inline constexpr int64_t kMaxBatchIds = int64_t{0xFFFFFFFF};

// Where the gradients of table t go.
struct TableGrad {
  int64_t* indices;  // [num_unique[t + 1] - num_unique[t]]
  void* values;      // [that, dim] of group.dtype
};

// Sorts all runs; sorter.SumRows() then says how large each TableGrad must be.
void SortRowsCpu(RowSorter* sorter, const ParallelFor& parallel_for);
void ReduceRowsCpu(const RowSorter& sorter, const TableGrad* grads,
                   const ParallelFor& parallel_for);
// weight_grad: [num_ids]
void WeightGradCpu(const Group& group, float* weight_grad, const ParallelFor& parallel_for);

#if GROUP_EMBEDDING_CUDA
// What SortRowsCuda leaves behind, in the caller's workspace, in device memory. An entry is a
// looked-up id; entries are sorted by table and row, and those of one row keep their order.
struct SortedRows {
  const int64_t* num_unique;  // [num_tables + 1] first unique row of each table, and the total. Of
                              // several owners: [num_owners * num_tables + 1], owner after owner
  const int64_t* first_keys;  // as long: the number of all rows of the tables before each; null
                              // where there are no ids
  const void* keys;           // [num_ids] of 32 or 64 bits: row + first key of its table. Entries
  bool has_wide_keys;         // without a gradient come last
  const uint32_t* samples;    // [num_ids] the sample that looked it up
  const float* factors;       // [num_ids] what the gradient of that is multiplied by; null: 1
  uint32_t* segments;         // [num_unique + 1] the entries of unique row u are at segments[u] to
                              // segments[u + 1]
  const int64_t* unique_addresses;  // [num_unique] where each unique row is read, aligned as in its
                                    // table; null: in its table
};

// Entries of SortOptions::id_addresses for ids that name no row: the id is left out, or reads
// zeros.
inline constexpr int64_t kSkippedIdAddress = -1;
inline constexpr int64_t kZeroRowAddress = INT64_MAX;

// What SortRowsCuda does besides.
struct SortOptions {
  const int64_t* first_rows = nullptr;  // [num_tables] on the host: rows before them have no
                                        // gradient here; null: all have
  // Row r of a table is row r / num_owners of owner r % num_owners. Entries are sorted by owner
  // first, and a row's number is that at its owner, where `num_rows` of a table rounds up.
  int64_t num_owners = 1;
  // On the device, both or none:
  uint32_t* positions = nullptr;  // [num_ids] written: of each sorted entry, in the batch
  uint32_t* samples = nullptr;    // [num_ids] scratch
  // To look up by address, with the two above, on the device:
  int64_t* id_addresses = nullptr;  // [num_ids] written for ids that name no row, and with the
                                    // address of each row that comes before first_rows
  Fault* fault = nullptr;  // with id_addresses: receives the first bad row split, or the first bad
                           // id unless bad ids are allowed
};

// How the gradients of a table are written: of this type, and multiplied by a factor.
struct GradientWire {
  DataType type;
  float factor;
};

struct ReduceOptions {
  const GradientWire* wires = nullptr;  // [num_tables] on the host; null: of group.dtype, times 1
  // The first num_tables / num_owners tables are written to the memory of one owner, and so on: all
  // of them at a time.
  int64_t num_owners = 1;
};

// As above, enqueued on `stream`. num_unique is the one array that the caller must bring to the
// host (the only synchronisation) to allocate `grads`. ReduceRowsCuda overwrites what is free in
// segments.
int64_t SortRowsWorkspaceBytesCuda(const Group& group, const SortOptions& options = {});
cudaError_t SortRowsCuda(const Group& group, void* workspace, SortedRows* sorted,
                         cudaStream_t stream, const SortOptions& options = {});
int64_t ReduceRowsScratchBytesCuda(const Group& group);
// grads: on the host; indices may be null, where nobody reads them.
cudaError_t ReduceRowsCuda(const Group& group, const SortedRows& sorted, const TableGrad* grads,
                           void* scratch, cudaStream_t stream, const ReduceOptions& options = {});
// Ids of a table without rows are addresses, as GroupLookupCuda has it.
int64_t WeightGradScratchBytesCuda(const Group& group);
cudaError_t WeightGradCuda(const Group& group, float* weight_grad, void* scratch,
                           cudaStream_t stream);
#endif

}  // namespace group_embedding
