// Packing: the rows of many tables in buffers of 32-bit words, a part for each rank, and back.
//
//   matrices  per table [sum of counts over ranks, dim]: the rows of rank 0 first
//   part      of one rank: block of table 0, block of table 1, ...
//   block     rows [count, dim] in the type that the table's rows travel in | a bit per row, bit
//             i % 32 of word i / 32: whether row i is present; both filled up to 16 bytes
//
// Lookups send all rows. Gradients go back in blocks of the same size, in which rows may be absent:
// those that no gradient reached. What is in their place means nothing.
#pragma once

#include <cstdint>
#include <vector>

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
  // [num_rows] where in a larger array `rows` each of them is; null: they are all that it has, in
  // order. Rows that are looked up are so packed without another copy.
  const int64_t* ids = nullptr;
};

// The words of each rank's part: splits [num_ranks].
void PackedSplits(const RowParts& parts, int64_t* splits);

// Where the parts are in a buffer that has them one after the other.
std::vector<char*> PartsIn(const RowParts& parts, void* packed);

// Rows, times `scale`, to the parts of the ranks: `packed` [num_ranks], null for one that is not
// wanted. `slices`: [num_tables].
void PackRows(const RowParts& parts, const RowSlices* slices, float scale, char* const* packed,
              const ParallelFor& parallel_for);

// How many rows of each table each part has: present [num_ranks, num_tables]; those of a part that
// is null stay as they are.
void CountPresentRows(const RowParts& parts, const char* const* packed, int64_t* present);

// The rows that are present, and their indices where those are asked for; the space of parts that
// are null is left.
void UnpackRows(const RowParts& parts, const char* const* packed, const int64_t* present,
                const RowSlices* slices, const ParallelFor& parallel_for);

// What a rank sends to itself needs no packing: it goes from the slices that the others' rows are
// packed from, to those that theirs are unpacked to, rounded as if it had travelled.
struct OwnRows {
  int64_t rank;
  RowParts sent;
  const RowSlices* from;
  float scale;
  RowParts received;
};

// [num_tables]: what UnpackRows wants to know of the rank's own part.
void CountOwnRows(const OwnRows& own, int64_t* present);

// present: [num_ranks, num_tables], of all parts.
void CopyOwnRows(const OwnRows& own, const int64_t* present, const RowSlices* to,
                 const ParallelFor& parallel_for);

}  // namespace group_embedding
