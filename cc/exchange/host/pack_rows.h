// Packs the rows of many tables into buffers of 32-bit words, one part per rank, and unpacks them.
//
//   matrix  per table [sum of counts over ranks, dim], ordered by rank
//   part    of one rank: block of table 0, block of table 1, ...
//   block   rows [count, dim] in the table's wire type | a bit per row, bit i % 32 of word i / 32:
//           whether row i is present; both padded to 16 bytes
//
// Lookups send all rows. Gradients are sent in blocks of the same size, in which rows without a
// gradient are absent: their bytes are undefined.
#pragma once

#include <cstdint>
#include <vector>

#include "core/group.h"
#include "core/parallel.h"

namespace group_embedding {

struct RowParts {
  const int64_t* counts;  // [num_ranks, num_tables] rows of each table that belong to each rank
  const int32_t* dims;    // [num_tables]
  const DataType* wire;   // [num_tables] the type in which rows are sent
  int64_t num_ranks;
  int64_t num_tables;
};

// Some rows of one table's matrix.
struct RowSlices {
  void* rows;  // [num_rows, dim]
  DataType dtype;
  bool all;          // `rows` has all rows of the matrix; else those of `indices`
  int64_t* indices;  // [num_rows] ascending; null: not needed
  int64_t num_rows;
  // [num_rows] the index of each row in a larger array `rows`, so that looked-up rows are packed
  // without another copy; null: `rows` has just these rows, in order.
  const int64_t* ids = nullptr;
};

// splits: [num_ranks] written: the number of words of each rank's part.
void PackedSplits(const RowParts& parts, int64_t* splits);

// The addresses of the parts in a buffer that holds them one after the other.
std::vector<char*> PartsIn(const RowParts& parts, void* packed);

// A buffer without the part of `rank`, or, for -1, with all parts: its number of words, and the
// addresses of the parts, null for that of `rank`.
int64_t WordsWithout(const RowParts& parts, int64_t rank);
std::vector<char*> PartsWithout(const RowParts& parts, int64_t rank, void* packed);

// Writes rows, multiplied by `scale`, to the ranks' parts. packed: [num_ranks], null for parts to
// skip. slices: [num_tables].
void PackRows(const RowParts& parts, const RowSlices* slices, float scale, char* const* packed,
              const ParallelFor& parallel_for);

// Counts the rows that are present. present: [num_ranks, num_tables] written, except for parts that
// are null.
void CountPresentRows(const RowParts& parts, const char* const* packed, int64_t* present);

// Writes the rows that are present, and their indices, to `slices`. The space of parts that are
// null is left as it is.
void UnpackRows(const RowParts& parts, const char* const* packed, const int64_t* present,
                const RowSlices* slices, const ParallelFor& parallel_for);

// The rows that a rank sends to itself. They are copied from slice to slice without packing,
// rounded to the wire type as rows that are sent.
struct OwnRows {
  int64_t rank;
  RowParts sent;
  const RowSlices* from;
  float scale;
  RowParts received;
};

// present: [num_tables] written: the rows of the rank's own part, for UnpackRows.
void CountOwnRows(const OwnRows& own, int64_t* present);

// present: [num_ranks, num_tables] the rows of all parts.
void CopyOwnRows(const OwnRows& own, const int64_t* present, const RowSlices* to,
                 const ParallelFor& parallel_for);

}  // namespace group_embedding
