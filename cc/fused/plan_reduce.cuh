// The kernel that plans those of reduce_rows.cuh, once the device has sorted the entries.
#pragma once

#include "fused/window.cuh"

namespace group_embedding {

// The first blocks of the tables of a kind: a thread counts the blocks that a table needs, all of
// them add up.
__device__ __forceinline__ void PlanBlocks(const ReduceArgs& args, int kind,
                                           int64_t* first_blocks) {
  __shared__ int64_t shared[kReduceThreads];
  int64_t before = 0;
  if (threadIdx.x == 0) first_blocks[0] = 0;
  for (int64_t first = 0; first < args.num_tables; first += kReduceThreads) {
    const int64_t t = first + threadIdx.x;
    int64_t count = 0;
    if (t < args.num_tables && args.tasks[t].kind == kind) {
      const int64_t teams = kReduceThreads >> args.tasks[t].shape.team_bits;
      count = (args.EndOfWindows(t) - args.FirstWindow(t) + teams - 1) / teams;
    }
    shared[threadIdx.x] = count;
    for (int offset = 1; offset < kReduceThreads; offset *= 2) {
      __syncthreads();
      const int64_t left = threadIdx.x >= offset ? shared[threadIdx.x - offset] : 0;
      __syncthreads();
      shared[threadIdx.x] += left;
    }
    __syncthreads();
    if (t < args.num_tables) first_blocks[t + 1] = before + shared[threadIdx.x];
    before += shared[kReduceThreads - 1];
    __syncthreads();
  }
}

// The first row that begins in a window, by one thread.
__device__ __forceinline__ void FindWindowRow(const ReduceArgs& args, int64_t window) {
  if (window > args.NumWindows(args.num_ids)) return;
  const int64_t begin = window << args.window_bits;
  int64_t low = 0, high = args.sorted.num_unique[args.num_tables];
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (__ldg(args.sorted.segments + middle) < begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  args.window_rows[window] = static_cast<uint32_t>(low);
}

// A block for each kind of tables, and then a thread for each window.
template <typename = void>
__global__ void __launch_bounds__(kReduceThreads)
    PlanReduceKernel(const __grid_constant__ ReduceArgs args, int64_t* first_blocks) {
  if (blockIdx.x == 0 && threadIdx.x < 2) args.num_long[threadIdx.x] = 0;
  if (blockIdx.x < kNumTableKinds) {
    PlanBlocks(args, blockIdx.x, first_blocks + blockIdx.x * (args.num_tables + 1));
  } else {
    FindWindowRow(args, int64_t{blockIdx.x - kNumTableKinds} * kReduceThreads + threadIdx.x);
  }
}

}  // namespace group_embedding
