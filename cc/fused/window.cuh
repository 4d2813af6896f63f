// Which entries a team of the kernels of reduce_rows.cuh takes.
#pragma once

#include "core/descriptors.cuh"
#include "fused/reduce_args.cuh"

namespace group_embedding {

inline constexpr int kReduceThreads = 256;

// The rows that begin in a window, but for a long one, which is the last.
struct Window {
  uint32_t begin, end;  // of their entries
  uint32_t first;       // of the unique rows
  int32_t num_rows;
  bool has_long_row;
};

// Part of a long row's entries.
struct Piece {
  uint32_t begin, end;
  bool is_first;  // of the row
};

// The unique rows from `first` to `end` that begin in a window and are the table's.
struct RowRange {
  uint32_t first, end;
};

__device__ __forceinline__ RowRange FindRows(const ReduceArgs& args, int32_t table,
                                             int64_t window) {
  const auto first = static_cast<uint32_t>(args.sorted.num_unique[table]);
  const auto end = static_cast<uint32_t>(args.sorted.num_unique[table + 1]);
  return {min(max(__ldg(args.window_rows + window), first), end),
          min(max(__ldg(args.window_rows + window + 1), first), end)};
}

__device__ __forceinline__ Window FindWindow(const ReduceArgs& args, int32_t table, int64_t index) {
  const uint32_t* segments = args.sorted.segments;
  const RowRange rows = FindRows(args, table, index);
  Window window{0, 0, rows.first, static_cast<int32_t>(rows.end - rows.first), false};
  if (window.num_rows == 0) return window;
  window.begin = __ldg(segments + rows.first);
  window.end = __ldg(segments + rows.end);
  const uint32_t last = __ldg(segments + rows.end - 1);
  if (window.end - last > kPieceEntries) {
    window.has_long_row = true;
    window.end = last;
    --window.num_rows;
  }
  return window;
}

// The piece that begins in a window of a row that began before. Empty where there is none.
__device__ __forceinline__ Piece FindLaterPiece(const ReduceArgs& args, int32_t table,
                                                int64_t index) {
  const uint32_t* segments = args.sorted.segments;
  const uint32_t u = FindRows(args, table, index).first;
  if (u == args.sorted.num_unique[table]) return {};
  const auto window_begin = static_cast<uint32_t>(index << args.window_bits);
  const uint32_t begin = __ldg(segments + u - 1), end = __ldg(segments + u);
  if (begin >= window_begin || end - begin <= kPieceEntries) return {};
  const uint32_t p = (window_begin - begin + kPieceEntries - 1) / kPieceEntries;
  const uint32_t piece = begin + p * kPieceEntries;
  if (piece >= min(end, window_begin + (1u << args.window_bits))) return {};
  return {piece, min(piece + kPieceEntries, end), false};
}

// The first piece of the long row that begins in a window.
__device__ __forceinline__ Piece FirstPiece(const Window& window) {
  if (!window.has_long_row) return {};
  return {window.end, window.end + kPieceEntries, true};
}

// Of `count` in so many shares, the one whose turn it is: one of each share in turn, so that
// neither the links to their memories nor this one's are idle. -1: none.
__device__ inline int64_t InTurns(int64_t turn, int64_t count, int64_t num_shares) {
  if (num_shares == 1) return turn < count ? turn : -1;  // divisions of 64 bits take their time
  const int64_t share = (count + num_shares - 1) / num_shares;
  const int64_t index = turn % num_shares * share + turn / num_shares;
  return turn / num_shares < share && index < count ? index : -1;
}

// The table that a block works for, and which of the table's blocks it is. -1: no table.
struct TableBlock {
  int32_t table;
  int64_t block;
};

__device__ __forceinline__ TableBlock FindTableBlock(const ReduceArgs& args, TableKind kind) {
  const int64_t* first_blocks = args.first_blocks + kind * (args.num_tables + 1);
  const int64_t index = InTurns(blockIdx.x, first_blocks[args.num_tables], args.num_owners);
  if (index < 0) return {-1, 0};
  const int64_t table = FindOwner(first_blocks, args.num_tables, index);
  return {static_cast<int32_t>(table), index - first_blocks[table]};
}

// The window of a team of a table's block-th block; -1: none.
__device__ __forceinline__ int64_t WindowOf(const ReduceArgs& args, const ReduceTask& task,
                                            int32_t table, int64_t block, const Team& team) {
  const int64_t index =
      args.FirstWindow(table) + block * (kReduceThreads >> task.shape.team_bits) + team.index;
  return index < args.EndOfWindows(table) ? index : -1;
}

}  // namespace group_embedding
