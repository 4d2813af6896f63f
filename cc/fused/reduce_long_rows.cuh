// The kernels of reduce_rows.cuh for rows that occur often.
#pragma once

#include "fused/reduce_rows.cuh"

namespace group_embedding {

// A long row before it is cut into pieces.
struct UncutRow {
  uint32_t piece_entries;
  uint32_t begin, count;  // of its entries
  uint32_t num_pieces;
  uint32_t sum;    // of the first piece, as in LongPiece
  uint32_t place;  // of the first piece, in the list
  uint32_t unique;
  int32_t table;

  // The row that this lane of the warp has.
  __device__ __forceinline__ UncutRow OfLane(int lane) const {
    const auto of_lane = [=](auto value) { return __shfl_sync(kFullWarp, value, lane); };
    return {of_lane(piece_entries), of_lane(begin), of_lane(count),  of_lane(num_pieces),
            of_lane(sum),           of_lane(place), of_lane(unique), of_lane(table)};
  }
  // Each lane of the warp lists some.
  __device__ __forceinline__ void ListPieces(const LongLists& lists) const {
    for (uint32_t p = threadIdx.x % kWarpSize; p < num_pieces; p += kWarpSize) {
      const uint32_t at = p * piece_entries;
      lists.piece(place + p) = {
          begin + at, min(piece_entries, count - at), unique, num_pieces, sum + p, table};
    }
  }
};

// A thread looks at a row after the other; its warp lists the pieces of one row at a time, as some
// have thousands. Long rows are next to each other where ids are numbered by how frequent they are.
template <typename Sink>
__global__ void __launch_bounds__(kReduceThreads)
    ListLongRowsKernel(const __grid_constant__ ReduceArgs args,
                       const __grid_constant__ typename Sink::Common common) {
  if (!Sink::IsActive(common)) return;
  const uint32_t* segments = args.sorted.segments;
  const int64_t num_unique = args.sorted.num_unique[args.num_tables];
  const uint32_t lane = threadIdx.x % kWarpSize;
  const int64_t step = int64_t{gridDim.x} * kReduceThreads;
  for (int64_t first = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x - lane;
       first < num_unique; first += step) {
    const int64_t unique = first + lane;
    UncutRow row{};
    row.begin = unique < num_unique ? segments[unique] : 0;
    row.count = unique < num_unique ? segments[unique + 1] - row.begin : 0;
    if (!__any_sync(kFullWarp, row.count > kMinLongEntries)) continue;
    row.unique = static_cast<uint32_t>(unique);
    row.table =
        static_cast<int32_t>(FindOwnerAlone(args.num_tables, min(unique, num_unique - 1),
                                            [&](int64_t t) { return args.sorted.num_unique[t]; }));
    const ReduceTask& task = args.tasks[row.table];
    const bool is_long = row.count > static_cast<uint32_t>(task.long_entries);
    row.piece_entries = task.piece_entries;
    row.num_pieces = (row.count + row.piece_entries - 1) / row.piece_entries;
    if (is_long) row.place = atomicAdd(args.lists.num_pieces, row.num_pieces);
    if (is_long && row.num_pieces > 1) {
      row.sum = atomicAdd(args.lists.num_sums, row.num_pieces);
      args.lists.rows[atomicAdd(args.lists.num_rows, 1)] = {row.unique, row.num_pieces, row.sum,
                                                            row.table};
    }
    for (unsigned left = __ballot_sync(kFullWarp, is_long); left != 0; left &= left - 1) {
      row.OfLane(__ffs(left) - 1).ListPieces(args.lists);
    }
  }
}

// Rows that a team loads before it adds the first of them. There is but one sum to keep, which
// leaves registers for more than CombineSegments has.
inline constexpr int kPieceRowsInFlight = 8;

// Adds entries [begin, end) to `sum`, in their order.
template <typename Vector, typename Source>
__device__ __forceinline__ void AddEntries(const Source& source, int64_t begin, int64_t end,
                                           bool has_column, float (&sum)[Vector::kSize]) {
  constexpr int kRows = kPieceRowsInFlight;
  typename Source::Fetched fetched[kRows];
  auto fetch = [&](int64_t from) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (from + i < end) fetched[i] = source.Fetch(from, i);
    }
  };
  fetch(begin);
  for (int64_t at = begin; at < end; at += kRows) {
    const char* places[kRows];
    Vector vectors[kRows];
    float weights[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      weights[i] = at + i < end ? source.Weight(fetched[i]) : 0.0f;
      places[i] = source.Row(fetched[i]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {  // as in CombineSegments
      vectors[i] = Vector::LoadIf(at + i < end && has_column, places[i]);
    }
    fetch(at + kRows);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Vector::kSize; ++j) sum[j] = fmaf(weights[i], vectors[i][j], sum[j]);
    }
  }
}

// The warp's teams share the entries of a piece. If it is all of a row, the first team takes it.
template <typename Vector, bool kAtOnce, Weighting weighting, typename Sink>
__device__ void ReducePiece(const ReduceArgs& args, const ReduceTask& task, const LongPiece& piece,
                            const typename Sink::Table& sink, const typename Sink::Common& common,
                            typename Sink::Shared& shared) {
  const Team team(task.shape.team_bits);
  const int num_teams = kWarpSize / team.size;
  const int in_warp = threadIdx.x % kWarpSize / team.size;
  const int64_t count = piece.count, share = (count + num_teams - 1) / num_teams;
  const int64_t begin = piece.begin + min(share * in_warp, count);
  const int64_t end = piece.begin + min(share * (in_warp + 1), count);
  typename Sink::template Team<Vector, kAtOnce> writer(args, piece.table, sink, common, team,
                                                       shared);
  float* sums = args.lists.sum(piece.sum);
  const int num_columns = NumColumns<Sink, kAtOnce>(task);
  for (int32_t c = 0; c < num_columns; ++c) {
    const int32_t column = c * team.size + team.lane;
    const bool has_column = column < task.shape.num_vectors;
    // A row of one piece has all columns here.
    const int num_rows = piece.num_pieces == 1 && in_warp == 0 ? 1 : 0;
    const int place = kAtOnce ? c : 0;
    writer.Start(piece.unique, num_rows, place, column * Vector::kSize, has_column);
    GradientSource<weighting> source{args, task, column * static_cast<int32_t>(sizeof(Vector))};
    float sum[Vector::kSize] = {};
    AddEntries<Vector>(source, begin, end, has_column, sum);
    for (int j = 0; j < Vector::kSize; ++j) {
      for (int offset = team.size; offset < kWarpSize; offset *= 2) {
        sum[j] += __shfl_xor_sync(kFullWarp, sum[j], offset);
      }
      if (piece.num_pieces > 1 && in_warp == 0 && has_column) {
        sums[column * Vector::kSize + j] = sum[j];
      }
    }
    if (piece.num_pieces == 1) {
      if (num_rows == 1) {
        writer.Take(place, piece.unique, Sink::kTakesRow ? args.RowOf(task, piece.unique) : 0,
                    column * Vector::kSize, has_column, sum);
      }
      if (kAtOnce && c + 1 < num_columns) continue;
      const int places = kAtOnce ? num_rows * num_columns : num_rows;
      writer.Finish(kLastPass, piece.unique, places, column * Vector::kSize, has_column);
    }
  }
}

// A warp works for one piece after the other.
template <typename T, Weighting weighting, typename Sink>
__global__ void __launch_bounds__(kReduceThreads, BlocksPerMultiprocessor(weighting))
    ReducePiecesKernel(const __grid_constant__ ReduceArgs args, const typename Sink::Table* sinks,
                       const __grid_constant__ typename Sink::Common common) {
  __shared__ typename Sink::Shared shared;
  const uint32_t num_pieces = *args.lists.num_pieces;
  const uint32_t num_warps = gridDim.x * (kReduceThreads / kWarpSize);
  for (uint32_t p = (blockIdx.x * kReduceThreads + threadIdx.x) / kWarpSize; p < num_pieces;
       p += num_warps) {
    const LongPiece piece = args.lists.piece(p);
    const ReduceTask task = args.tasks[piece.table];
    if (task.kind != Sink::kKind) continue;
    ForSinkTeam<T, Sink>(task, [&](auto vector, auto at_once) {
      ReducePiece<decltype(vector), at_once.value, weighting, Sink>(
          args, task, piece, sinks[piece.table], common, shared);
    });
  }
}

// A row that most ids name has hundreds of pieces, and one block to add them.
inline constexpr int kAddThreads = 512;

// The sum over all threads of the block, in a fixed order.
__device__ inline float BlockSum(float value, float* shared) {
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int offset = kAddThreads / 2; offset > 0; offset /= 2) {
    __syncthreads();
    if (threadIdx.x < offset) shared[threadIdx.x] += shared[threadIdx.x + offset];
  }
  __syncthreads();
  return shared[0];
}

// A block works for one row of several pieces after the other, and leaves its gradient where the
// sum of the first piece was. Its threads form groups, each with a thread per column (512
// columns at a time); a group adds every num_groups-th piece, the first group adds up.
template <typename T>
__global__ void __launch_bounds__(kAddThreads) AddPiecesKernel(ReduceArgs args) {
  __shared__ float shared[kAddThreads];
  const uint32_t num_rows = *args.lists.num_rows;
  for (uint32_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    const LongRow row = args.lists.rows[r];
    const ReduceTask& task = args.tasks[row.table];
    const T* x = nullptr;
    if (task.max_norm > 0) x = reinterpret_cast<const T*>(args.RowAt(task, row.unique));
    float* sums = args.lists.sum(row.sum);
    int32_t width = 1;
    while (width < kAddThreads && width < task.dim) width *= 2;
    const int32_t lane = threadIdx.x % width, group = threadIdx.x / width;
    const int32_t num_groups = kAddThreads / width;
    float squares = 0, dot = 0;
    for (int32_t column = lane; column - lane < task.dim; column += width) {
      float sum = 0;
      if (column < task.dim) {
#pragma unroll 8
        for (uint32_t p = group; p < row.num_pieces; p += num_groups) {
          sum += sums[int64_t{p} * args.lists.sum_stride + column];
        }
      }
      __syncthreads();
      shared[threadIdx.x] = sum;
      __syncthreads();
      if (group != 0 || column >= task.dim) continue;
      for (int32_t g = 1; g < num_groups; ++g) sum += shared[g * width + lane];
      sums[column] = sum;
      if (task.max_norm > 0) {
        const float element = ToFloat(x[column]);
        squares += element * element;
        dot += element * sum;
      }
    }
    if (task.max_norm > 0) {
      const float all_squares = BlockSum(squares, shared);
      const ClipGradient clip = ClipGradient::Of(all_squares, BlockSum(dot, shared), task.max_norm);
      if (group == 0) {
        for (int32_t column = lane; column < task.dim; column += width) {
          sums[column] = clip.scale * (sums[column] - clip.along * ToFloat(x[column]));
        }
      }
    }
  }
}

template <typename Vector, bool kAtOnce, typename Sink>
__device__ void TakeLongRow(const ReduceArgs& args, const ReduceTask& task, const LongRow& row,
                            const typename Sink::Table& sink, const typename Sink::Common& common,
                            typename Sink::Shared& shared) {
  const Team team(task.shape.team_bits);
  const bool is_first = threadIdx.x % kWarpSize < team.size;
  typename Sink::template Team<Vector, kAtOnce> writer(args, row.table, sink, common, team, shared);
  const float* sums = args.lists.sum(row.sum);
  const int64_t in_table = Sink::kTakesRow ? args.RowOf(task, row.unique) : 0;
  const int num_columns = NumColumns<Sink, kAtOnce>(task), num_rows = is_first ? 1 : 0;
  const bool sums_first = Sink::kKind == kAnyTable && num_columns > 1 && Sink::NeedsRow(common);
  for (int pass = sums_first ? kSumOfRow : kLastPass; pass <= kLastPass; ++pass) {
    for (int32_t c = 0; c < num_columns; ++c) {
      const int32_t column = (c * team.size + team.lane) * Vector::kSize;
      const bool has_column = column < task.dim;
      const int place = kAtOnce ? c : 0;
      writer.Start(row.unique, num_rows, place, column, has_column);
      float sum[Vector::kSize];
      for (int j = 0; j < Vector::kSize; ++j) sum[j] = has_column ? sums[column + j] : 0.0f;
      if (is_first) writer.Take(place, row.unique, in_table, column, has_column, sum);
      if (kAtOnce && c + 1 < num_columns) continue;
      const int places = kAtOnce ? num_rows * num_columns : num_rows;
      writer.Finish(pass, row.unique, places, column, has_column);
    }
    if (pass == kSumOfRow) writer.EndSum(row.unique, is_first);
  }
}

// The first team of a warp hands one long row after the other to the sink.
template <typename T, typename Sink>
__global__ void __launch_bounds__(kReduceThreads)
    TakeLongRowsKernel(const __grid_constant__ ReduceArgs args, const typename Sink::Table* sinks,
                       const __grid_constant__ typename Sink::Common common) {
  __shared__ typename Sink::Shared shared;
  const uint32_t num_rows = *args.lists.num_rows;
  const uint32_t num_warps = gridDim.x * (kReduceThreads / kWarpSize);
  for (uint32_t r = (blockIdx.x * kReduceThreads + threadIdx.x) / kWarpSize; r < num_rows;
       r += num_warps) {
    const LongRow row = args.lists.rows[r];
    const ReduceTask& task = args.tasks[row.table];
    if (task.kind != Sink::kKind) continue;
    ForSinkTeam<T, Sink>(task, [&](auto vector, auto at_once) {
      TakeLongRow<decltype(vector), at_once.value, Sink>(args, task, row, sinks[row.table], common,
                                                         shared);
    });
  }
}

}  // namespace group_embedding
