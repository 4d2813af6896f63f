// Packing: the rows of many tables in one buffer of 32-bit words, part by part for each rank, and
// back.
//
//   matrices  per table [sum of counts over ranks, dim]: the rows of rank 0 first
//   packed    rank 0: block of table 0, block of table 1, ...; rank 1: ...
//   block     rows [count, dim] in the type that the table's rows travel in | a bit per row, bit
//             i % 32 of word i / 32: whether row i is present; both filled up to 16 bytes
//
// Lookups send all rows. Gradients go back in blocks of the same size, in which rows may be absent:
// those that no gradient reached.
#pragma once

#include <cstdint>

#include "core/group.h"
#include "core/parallel.h"

namespace group_embedding {

struct RowParts {
  const int64_t* counts;  // [num_ranks, num_tables] rows of each table that belong to each rank
  const int32_t* dims;    // [num_tables]
  const DataType* wire;   // [num_tables] the type in which rows travel
  int64_t num_ranks;
  int64_t num_tables;
};

// Some rows of one table's matrix.
struct RowSlices {
  void* rows;  // [num_rows, dim]
  DataType dtype;
  bool all;          // of the matrix's rows; else `indices` says which
  int64_t* indices;  // [num_rows] ascending; null where nobody asks for them
  int64_t num_rows;
};

// The words of each rank's part: splits [num_ranks].
void PackedSplits(const RowParts& parts, int64_t* splits);

// Rows, times `scale`, to `packed`; absent ones are zeros there. `slices`: [num_tables].
void PackRows(const RowParts& parts, const RowSlices* slices, float scale, void* packed,
              const ParallelFor& parallel_for);

// How many rows of each table are present: num_rows [num_tables].
void CountPresentRows(const RowParts& parts, const void* packed, int64_t* num_rows);

// The rows that are present, and their indices where those are asked for.
void UnpackRows(const RowParts& parts, const void* packed, const RowSlices* slices,
                const ParallelFor& parallel_for);

}  // namespace group_embedding
