// What the kernels of reduce_rows.cuh get: tables, their gradients and sorted entries, and the
// lists of rows that occur often.
#pragma once

#include <cstdint>

#include "core/rows.cuh"
#include "fused/group_lookup_grad.h"

namespace group_embedding {

inline constexpr int64_t kEntriesPerTeam = 32;
inline constexpr int32_t kMinLongEntries = 64;  // a row of no more is not long

// The kernels that handle a table. Each kind has kernels of its own, since the tables that share a
// kernel all use as many registers as the largest needs. Plain tables have rows that are not
// clipped, and a rule for which the caller has special kernels.
enum TableKind : int32_t {
  kAnyTable,
  kOneWord,   // plain; a thread has one word of 16 bytes of a row. Float32: dims 4, 8, 12 to 128
  kFewWords,  // plain; it has several, or words of 8 or 4 bytes
  kNumTableKinds,
};

// The output gradients of one feature of a table.
struct GradientsOfFeature {
  const char* gradients;
  int64_t bytes_per_sample;
  uint32_t first_sample;
  uint32_t last_sample;  // counted from the first
};

// One table, as the kernels need it.
struct ReduceTask {
  const char* rows;
  int64_t row_bytes;
  int64_t first_key;
  GradientsOfFeature feature;          // the first of them
  const GradientsOfFeature* features;  // all, ascending
  int32_t num_features;
  RowShape shape;  // of rows and gradients
  int32_t dim;
  float max_norm;
  int32_t long_entries;   // a row with more is long
  int32_t piece_entries;  // at most, of a piece of it
  TableKind kind;
};

// A piece of a long row. Sums are stored only for rows of several pieces.
struct LongPiece {
  uint32_t begin;  // of its entries
  uint32_t count;
  uint32_t unique;      // over all tables
  uint32_t num_pieces;  // of the row
  uint32_t sum;         // index of its sum in LongLists
  int32_t table;
};

struct LongRow {
  uint32_t unique;  // over all tables
  uint32_t num_pieces;
  uint32_t sum;  // of its first piece; the others follow
  int32_t table;
};
static_assert(sizeof(LongRow) == 16);

// Pieces are where SortedRows::segments has space, from the end of the buffer down: a row of n
// entries leaves n - 1 words free, and a piece of kLeastPieceEntries, or all 65 entries or more of
// a row, takes 6.
struct LongLists {
  uint32_t* num_rows;    // [1]
  uint32_t* num_pieces;  // [1]
  uint32_t* num_sums;    // [1]
  LongRow* rows;
  LongPiece* pieces_end;
  float* sums;         // of the pieces of rows of several
  int64_t sum_stride;  // elements from one sum to the next

  __device__ float* sum(uint32_t i) const { return sums + i * sum_stride; }
  __device__ LongPiece& piece(uint32_t i) const { return pieces_end[-1 - static_cast<int64_t>(i)]; }
};

struct ReduceArgs {
  const ReduceTask* tasks;      // [num_tables]
  const int64_t* first_blocks;  // [kNumTableKinds, num_tables + 1]
  int64_t num_tables;
  int64_t num_ids;
  int64_t num_owners;
  SortedRows sorted;
  LongLists lists;

  // Consecutive unique rows for a team: as many as make it worth starting.
  __host__ __device__ static int64_t RowsPerTeam(int64_t num_unique, int64_t num_ids) {
    const int64_t rows = (kEntriesPerTeam * num_unique + num_ids - 1) / num_ids;
    return rows < 1 ? 1 : rows;
  }
  __device__ int64_t RowOf(const ReduceTask& task, int64_t unique) const {
    const uint32_t entry = __ldg(sorted.segments + unique);
    return (sorted.has_wide_keys
                ? __ldg(static_cast<const long long*>(sorted.keys) + entry)
                : int64_t{__ldg(static_cast<const unsigned*>(sorted.keys) + entry)}) -
           task.first_key;
  }
  __device__ const char* RowAt(const ReduceTask& task, int64_t unique) const {
    return sorted.unique_addresses != nullptr
               ? reinterpret_cast<const char*>(sorted.unique_addresses[unique])
               : task.rows + RowOf(task, unique) * task.row_bytes;
  }
};

}  // namespace group_embedding
