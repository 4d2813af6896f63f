// What the kernels of reduce_rows.cuh get: tables, their gradients and sorted entries, and where
// the sums of long rows are kept.
#pragma once

#include <cstdint>

#include "core/rows.cuh"
#include "fused/group_lookup_grad.h"

namespace group_embedding {

// A row of more entries is long. It is added up in pieces of so many, counted from its first entry,
// so that a row's gradient depends on its own entries alone, wherever they are in the batch.
inline constexpr uint32_t kPieceEntries = 64;
// A row of more pieces has a block to add them.
inline constexpr uint32_t kManyPieces = 32;

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
  uint32_t bytes_per_sample;
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
  TableKind kind;
};

// A long row.
struct LongRow {
  uint32_t unique;  // over all tables
  int32_t table;
};

// The sums of the pieces of long rows, in float32. Where a piece is kept, its first entry says: of
// kPieceEntries consecutive entries, from a multiple of it on, at most one is the first of a long
// row, and at most one the first of another piece of one.
struct PieceSums {
  float* sums;
  int64_t stride;  // elements from one sum to the next, a multiple of 4

  // entry: the first of the piece; is_first: whether it is the row's first, too.
  __device__ float* At(uint32_t entry, bool is_first) const {
    return sums + (2 * int64_t{entry / kPieceEntries} + is_first) * stride;
  }
  static int64_t Bytes(int64_t num_ids, int64_t stride) {
    return 2 * (num_ids / kPieceEntries + 1) * stride * static_cast<int64_t>(sizeof(float));
  }
};

struct ReduceArgs {
  const ReduceTask* tasks;      // [num_tables]
  const int64_t* first_blocks;  // [kNumTableKinds, num_tables + 1]
  int64_t num_tables;
  int64_t num_ids;
  int64_t num_owners;
  SortedRows sorted;
  // Entries are cut into windows of 2 to the power of window_bits, at most kPieceEntries, wherever
  // rows end.
  int32_t window_bits;
  uint32_t* window_rows;  // [NumWindows(num_ids) + 1] the first unique row that begins in each
  PieceSums pieces;
  uint32_t* num_long;  // [2] long rows, and those of more than kManyPieces pieces
  LongRow* long_rows;  // which these are, in any order
  LongRow* many;

  __host__ __device__ int64_t NumWindows(int64_t num_entries) const {
    return (num_entries + (int64_t{1} << window_bits) - 1) >> window_bits;
  }
  // The windows in which table t has entries are those from FirstWindow to EndOfWindows.
  __device__ int64_t FirstWindow(int64_t t) const {
    return __ldg(sorted.segments + sorted.num_unique[t]) >> window_bits;
  }
  __device__ int64_t EndOfWindows(int64_t t) const {
    return NumWindows(__ldg(sorted.segments + sorted.num_unique[t + 1]));
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
