// Rows whose columns come from several ranks.
//
//   parts  [num_ranks * num_rows, dim / num_ranks], rank after rank: the columns of all rows that
//   it
//          has
//   rows   [num_rows, dim]
#pragma once

#include <cstdint>

#include "core/parallel.h"

namespace group_embedding {

// The sizes of one table's rows.
struct JoinedRows {
  int64_t num_ranks;
  int64_t num_rows;
  int64_t part_dim;  // columns of a rank
};

// rows: written.
void JoinColumns(const JoinedRows& sizes, const float* parts, float* rows,
                 const ParallelFor& parallel_for);

// The inverse; parts: written.
void SplitColumns(const JoinedRows& sizes, const float* rows, float* parts,
                  const ParallelFor& parallel_for);

}  // namespace group_embedding
