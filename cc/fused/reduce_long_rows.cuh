// The kernels of ReduceRowsCuda for rows that occur often: ReducePiecesKernel and AddPiecesKernel.
#pragma once

#include "fused/reduce_rows.cuh"

namespace group_embedding {

struct PartOfPiece {
  int64_t end;
};

template <typename Vector, Weighting weighting>
__device__ void ReducePiece(const ReduceArgs& args, const ReduceTask& task, const LongPiece& piece,
                            float* sums) {
  const Team team(task.shape.team_bits);
  const int num_teams = kWarpSize / team.size;
  const int in_warp = threadIdx.x % kWarpSize / team.size;
  const int64_t share = (piece.count + num_teams - 1) / num_teams;
  const int64_t begin = piece.begin + min(share * in_warp, int64_t{piece.count});
  const int64_t end = piece.begin + min(share * (in_warp + 1), int64_t{piece.count});
  for (int32_t c = 0; c < task.shape.num_columns; ++c) {
    const int32_t column = c * team.size + team.lane;
    const bool has_column = column < task.shape.num_vectors;
    GradientSource<weighting> source{args, task, column * static_cast<int32_t>(sizeof(Vector))};
    float sum[Vector::kSize];
    CombineSegments<Vector>(
        1, begin, has_column, [&](int) { return PartOfPiece{end}; }, source, NoClip{},
        [&](int, const PartOfPiece&, Combined<Vector::kSize>& combined) {
          for (int j = 0; j < Vector::kSize; ++j) sum[j] = combined.sum[j];
        });
    for (int j = 0; j < Vector::kSize; ++j) {
      for (int offset = team.size; offset < kWarpSize; offset *= 2) {
        sum[j] += __shfl_xor_sync(kFullWarp, sum[j], offset);
      }
      if (in_warp == 0 && has_column) sums[column * Vector::kSize + j] = sum[j];
    }
  }
}

// A warp works for one piece after the other; its teams share the entries of a piece.
template <typename T, Weighting weighting>
__global__ void __launch_bounds__(kReduceThreads, BlocksPerMultiprocessor(weighting))
    ReducePiecesKernel(ReduceArgs args) {
  const uint32_t num_pieces = *args.lists.num_pieces;
  const uint32_t num_warps = gridDim.x * (kReduceThreads / kWarpSize);
  for (uint32_t p = (blockIdx.x * kReduceThreads + threadIdx.x) / kWarpSize; p < num_pieces;
       p += num_warps) {
    const LongPiece piece = args.lists.pieces[p];
    const ReduceTask& task = args.tasks[piece.table];
    ForVector<T>(task.shape.vector_bytes, [&](auto vector) {
      ReducePiece<decltype(vector), weighting>(args, task, piece,
                                               args.lists.sums + p * args.lists.max_dim);
    });
  }
}

// The sum over all threads of the block, in a fixed order.
__device__ inline float BlockSum(float value, float* shared) {
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int offset = kReduceThreads / 2; offset > 0; offset /= 2) {
    __syncthreads();
    if (threadIdx.x < offset) shared[threadIdx.x] += shared[threadIdx.x + offset];
  }
  __syncthreads();
  return shared[0];
}

// A block works for one long row after the other. Its threads form groups, each with a thread per
// column (256 columns at a time); a group adds every num_groups-th piece, the first group adds up.
template <typename T, typename Sink>
__global__ void __launch_bounds__(kReduceThreads)
    AddPiecesKernel(ReduceArgs args, const Sink* sinks) {
  __shared__ float shared[kReduceThreads];
  const uint32_t num_rows = *args.lists.num_rows;
  for (uint32_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    const LongRow row = args.lists.rows[r];
    const ReduceTask& task = args.tasks[row.table];
    const int64_t in_table = args.sorted.rows[row.unique];
    const T* x = reinterpret_cast<const T*>(task.rows + in_table * task.row_bytes);
    const float* sums = args.lists.sums + row.first_piece * args.lists.max_dim;
    int32_t width = 1;
    while (width < kReduceThreads && width < task.dim) width *= 2;
    const int32_t lane = threadIdx.x % width, group = threadIdx.x / width;
    const int32_t num_groups = kReduceThreads / width;
    const bool clips = task.max_norm > 0;
    ClipGradient clip;
    float squares = 0, dot = 0;
    for (int pass = clips ? 0 : 1; pass < 2; ++pass) {
      for (int32_t column = lane; column - lane < task.dim; column += width) {
        float sum = 0;
        if (column < task.dim) {
#pragma unroll 8
          for (uint32_t p = group; p < row.num_pieces; p += num_groups) {
            sum += sums[p * args.lists.max_dim + column];
          }
        }
        __syncthreads();
        shared[threadIdx.x] = sum;
        __syncthreads();
        if (group != 0 || column >= task.dim) continue;
        for (int32_t g = 1; g < num_groups; ++g) sum += shared[g * width + lane];
        if (clips) {
          const float element = ToFloat(x[column]);
          squares += element * element;
          dot += element * sum;
          sum = clip.scale * (sum - clip.along * element);
        }
        const float gradient[1] = {sum};
        if (pass == 1) sinks[row.table](row.unique - task.first_unique, in_table, column, gradient);
      }
      if (pass == 0) {
        const float all_squares = BlockSum(squares, shared);
        clip = ClipGradient::Of(all_squares, BlockSum(dot, shared), task.max_norm);
      }
    }
  }
}

}  // namespace group_embedding
