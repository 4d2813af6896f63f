// Packing: the rows of many tables in one buffer, part by part for each rank, and back.
//
//   matrices  per table [sum of counts over ranks, dim]: the rows of rank 0 first
//   packed    rank 0: rows of table 0, rows of table 1, ...; rank 1: ...
//
// Each is the other's inverse, and therefore also the other's gradient.
#pragma once

#include <cstdint>

#include "core/parallel.h"

namespace group_embedding {

struct RowParts {
  const int64_t* counts;  // [num_ranks, num_tables] rows of each table that belong to each rank
  const int32_t* dims;    // [num_tables]
  int64_t num_ranks;
  int64_t num_tables;
  int64_t element_bytes;
};

// Elements of the part of each rank: splits [num_ranks].
void PackedSplits(const RowParts& parts, int64_t* splits);

// matrices: [num_tables] pointers.
void PackRows(const RowParts& parts, const void* const* matrices, void* packed,
              const ParallelFor& parallel_for);
void UnpackRows(const RowParts& parts, const void* packed, void* const* matrices,
                const ParallelFor& parallel_for);

}  // namespace group_embedding
