// The kernels of reduce_rows.cuh for long rows.
#pragma once

#include "fused/reduce_rows.cuh"

namespace group_embedding {

// The pieces of a long row.
struct PiecesOfRow {
  const PieceSums& sums;
  uint32_t begin;  // of the row's entries
  uint32_t count;  // pieces

  __device__ PiecesOfRow(const ReduceArgs& args, uint32_t unique)
      : sums(args.pieces), begin(args.sorted.segments[unique]) {
    count = (args.sorted.segments[unique + 1] - begin + kPieceEntries - 1) / kPieceEntries;
  }
  __device__ float* operator[](uint32_t p) const {
    return sums.At(begin + p * kPieceEntries, p == 0);
  }
};

// A row that most ids name has thousands of pieces, and one block to add them.
inline constexpr int kAddThreads = 1024;

__device__ inline void AddTo(float4* sum, const float4& other) {
  sum->x += other.x;
  sum->y += other.y;
  sum->z += other.z;
  sum->w += other.w;
}

// A block works for one row of very many pieces after the other, and leaves its sum where that of
// the first piece was. Its threads form groups, each with a thread per four columns (4,096 columns
// at a time); a group adds every num_groups-th piece, the first group adds up.
template <typename = void>
__global__ void __launch_bounds__(kAddThreads)
    AddPiecesKernel(const __grid_constant__ ReduceArgs args) {
  __shared__ float4 shared[kAddThreads];
  const uint32_t num_rows = args.num_long[1];
  for (uint32_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    const LongRow row = args.many[r];
    const PiecesOfRow pieces(args, row.unique);
    const int32_t num_vectors = (args.tasks[row.table].dim + 3) / 4;
    int32_t width = 1;
    while (width < kAddThreads && width < num_vectors) width *= 2;
    const int32_t lane = threadIdx.x % width, group = threadIdx.x / width;
    const int32_t num_groups = kAddThreads / width;
    for (int32_t vector = lane; vector - lane < num_vectors; vector += width) {
      float4 sum{};
      if (vector < num_vectors) {
#pragma unroll 8
        for (uint32_t p = group; p < pieces.count; p += num_groups) {
          AddTo(&sum, reinterpret_cast<const float4*>(pieces[p])[vector]);
        }
      }
      __syncthreads();
      shared[threadIdx.x] = sum;
      __syncthreads();
      if (group != 0 || vector >= num_vectors) continue;
      for (int32_t g = 1; g < num_groups; ++g) AddTo(&sum, shared[g * width + lane]);
      reinterpret_cast<float4*>(pieces[0])[vector] = sum;
    }
  }
}

// The sum of the thread's columns of the pieces, in their order.
template <int kSize>
__device__ __forceinline__ void SumPieces(const PiecesOfRow& pieces, int32_t column,
                                          float (&sum)[kSize]) {
  const uint32_t count = pieces.count > kManyPieces ? 1 : pieces.count;  // they are added already
#pragma unroll 4
  for (uint32_t p = 0; p < count; ++p) {
    const float* from = pieces[p] + column;
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum[j] += from[j];
  }
}

// The first team of a warp gives a long row to the sink.
template <typename Vector, bool kAtOnce, typename Sink>
__device__ void TakeLongRow(const ReduceArgs& args, const ReduceTask& task, const Team& team,
                            uint32_t unique, const typename Sink::Common& common,
                            typename Sink::template Team<Vector, kAtOnce>& writer) {
  const PiecesOfRow pieces(args, unique);
  const bool is_there = threadIdx.x % kWarpSize < team.size;
  const int num_columns = NumColumns<Sink, kAtOnce>(task), num_rows = is_there ? 1 : 0;
  auto column_of = [&](int c) { return (c * team.size + team.lane) * Vector::kSize; };
  auto sum_of = [&](int c, float(&sum)[Vector::kSize]) {
    if (is_there && column_of(c) < task.dim) SumPieces(pieces, column_of(c), sum);
  };
  const bool clips = Sink::kKind == kAnyTable && task.max_norm > 0 && is_there;
  RowClip<Vector> clip{args, task, team};
  if (clips) {
    for (int c = 0; c < num_columns; ++c) {
      float sum[Vector::kSize] = {};
      sum_of(c, sum);
      clip.Add(clip.Row(unique, column_of(c), column_of(c) < task.dim), sum);
    }
    clip.EndRow();
  }
  const bool sums_first = Sink::kKind == kAnyTable && num_columns > 1 && Sink::NeedsRow(common);
  for (int pass = sums_first ? kSumOfRow : kLastPass; pass <= kLastPass; ++pass) {
    for (int c = 0; c < num_columns; ++c) {
      const int32_t column = column_of(c);
      const bool has_column = column < task.dim;
      const int place = kAtOnce ? c : 0;
      writer.Start(unique, num_rows, place, column, has_column);
      float sum[Vector::kSize] = {};
      sum_of(c, sum);
      if (clips) clip.Apply(clip.Row(unique, column, has_column), sum);
      if (is_there) writer.Take(place, unique, column, has_column, sum);
      if (kAtOnce && c + 1 < num_columns) continue;
      const int places = kAtOnce ? num_rows * num_columns : num_rows;
      writer.Finish(pass, unique, places, column, has_column);
    }
    if (pass == kSumOfRow) writer.EndSum(unique, is_there);
  }
}

// A warp works for one long row after the other. One kernel has all plain tables: long rows are
// few.
template <typename T, typename Sink>
__global__ void __launch_bounds__(kReduceThreads)
    TakeLongRowsKernel(const __grid_constant__ ReduceArgs args, const typename Sink::Table* sinks,
                       const __grid_constant__ typename Sink::Common common) {
  __shared__ typename Sink::Shared shared;
  const uint32_t num_rows = args.num_long[0];
  const uint32_t num_warps = gridDim.x * (kReduceThreads / kWarpSize);
  for (uint32_t r = (blockIdx.x * kReduceThreads + threadIdx.x) / kWarpSize; r < num_rows;
       r += num_warps) {
    const LongRow row = args.long_rows[r];
    const ReduceTask task = args.tasks[row.table];
    if ((task.kind == kAnyTable) != (Sink::kKind == kAnyTable)) continue;
    const Team team(task.shape.team_bits);
    ForSinkTeam<T, Sink, /*kAllPlain=*/true>(task, [&](auto vector, auto at_once) {
      using Vector = decltype(vector);
      typename Sink::template Team<Vector, at_once.value> writer(args, row.table, sinks[row.table],
                                                                 common, team, shared);
      TakeLongRow<Vector, at_once.value, Sink>(args, task, team, row.unique, common, writer);
    });
  }
}

}  // namespace group_embedding
