#include <algorithm>

#include "core/device_buffer.h"
#include "table/device/exchange_rows.cuh"
#include "table/device/row_moves.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;

// The order in which rows leave device memory: the row with the lowest priority leaves first.
struct RowPriority {
  int64_t heat, clock, row;

  __device__ bool IsColder(const RowPriority& other) const {
    return heat != other.heat ? heat < other.heat : clock < other.clock;
  }
};

// Disjoint windows of rows in device memory, in each of which a launch looks for one victim.
struct Windows {
  int64_t num_rows, size, count;

  __device__ explicit Windows(const DeviceTableRef& table)
      : num_rows(table.moves.device_rows - table.first_row),
        size(min(num_rows, int64_t{kWarpSize})),
        count(size > 0 ? num_rows / size : 0) {}
};

// A warp finds, in its window, the row of lowest priority that may move. All lanes get the result;
// its row is kNoRow if no row may move.
__device__ RowPriority FindVictim(const DeviceTableRef& table, const Windows& windows,
                                  int64_t window, int64_t held_since) {
  const MovesRef& moves = table.moves;
  const int lane = threadIdx.x % kWarpSize;
  RowPriority victim = {INT64_MAX, INT64_MAX, kNoRow};
  if (lane < windows.size) {
    const int64_t row =
        table.first_row + (moves.state->hand + window * windows.size + lane) % windows.num_rows;
    if (MayMove(table, row, held_since) && !moves.IsNext(row)) {
      victim = {moves.Heat(table.infos[row].count, moves.ClockOf(row)), moves.ClockOf(row), row};
    }
  }
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const RowPriority other = {__shfl_xor_sync(kFullWarp, victim.heat, offset),
                               __shfl_xor_sync(kFullWarp, victim.clock, offset),
                               __shfl_xor_sync(kFullWarp, victim.row, offset)};
    const bool is_equal = !victim.IsColder(other) && !other.IsColder(victim);
    if (other.IsColder(victim) || (is_equal && other.row < victim.row)) victim = other;
  }
  return victim;
}

// A warp has one wanted row.
__global__ void MoveRowsKernel(DeviceTableRef table, int64_t held_since) {
  const MovesRef& moves = table.moves;
  const int64_t w = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize;
  if (w >= min(static_cast<int64_t>(moves.state->num_wanted), moves.max_wanted)) return;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row = moves.wanted[w];
  if (lane == 0) atomicAnd(&moves.uses[row], ~1ULL);
  __syncwarp();
  const Windows windows(table);
  if (w >= windows.count || row < moves.device_rows || !MayMove(table, row, held_since)) return;
  const RowPriority victim = FindVictim(table, windows, w, held_since);
  if (victim.row == kNoRow) return;
  if (lane == 0) {
    atomicAdd(&moves.state->num_victims, 1ULL);
    atomicAdd(&moves.state->victims_heat, static_cast<unsigned long long>(victim.heat));
  }
  if (moves.Heat(table.infos[row].count, moves.ClockOf(row)) <= victim.heat) return;
  ExchangePairs(table, lane == 0 ? row : lane == 1 ? victim.row : kNoRow, lane);
}

__global__ void FinishMovesKernel(DeviceTableRef table) {
  MovesState* state = table.moves.state;
  const Windows windows(table);
  const int64_t num_wanted = min(static_cast<int64_t>(state->num_wanted), table.moves.max_wanted);
  if (windows.count > 0) {
    state->hand = (state->hand + min(num_wanted, windows.count) * windows.size) % windows.num_rows;
  }
  if (state->num_victims > 0) {
    state->bar = static_cast<int64_t>(state->victims_heat / state->num_victims);
  }
  state->num_wanted = state->num_victims = state->victims_heat = 0;
}

}  // namespace

RowMoves::RowMoves(int64_t max_rows, CacheStrategy cache_strategy, Status* error)
    : cache_strategy_(cache_strategy), uses_(ReserveDeviceMemory(max_rows * kUseBytes)) {
  cudaError_t failed = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  if (failed == cudaSuccess) failed = cudaMalloc(&wanted_, kMostRows * sizeof(int64_t));
  if (failed == cudaSuccess) failed = cudaMalloc(&state_, sizeof(MovesState));
  if (failed == cudaSuccess) failed = cudaMallocHost(&is_due_, sizeof(int32_t));
  if (failed == cudaSuccess) {
    *is_due_ = 0;
    const MovesState state = {0, 0, -1, 0, 0};
    failed = cudaMemcpy(state_, &state, sizeof(state), cudaMemcpyHostToDevice);
  }
  if (failed != cudaSuccess) *error = CudaStatus(failed);
}

RowMoves::~RowMoves() {
  cudaDeviceSynchronize();
  cudaFree(wanted_);
  cudaFree(state_);
  cudaFreeHost(is_due_);
  cudaStreamDestroy(stream_);
}

MovesRef RowMoves::ref(int64_t device_rows, int64_t bytes_per_row) const {
  return {reinterpret_cast<unsigned long long*>(uses_->data()),
          wanted_,
          state_,
          is_due_,
          std::clamp<int64_t>(kMostBytes / bytes_per_row, 1, kMostRows),
          device_rows,
          cache_strategy_,
          /*is_next=*/nullptr,
          /*num_next=*/0};
}

cudaError_t RowMoves::Enqueue(const DeviceTableRef& table, int64_t held_since) {
  *static_cast<volatile int32_t*>(is_due_) = 0;
  MoveRowsKernel<<<kMostRows / kWarpsPerBlock, kThreads, 0, stream_>>>(table, held_since);
  FinishMovesKernel<<<1, 1, 0, stream_>>>(table);
  return cudaGetLastError();
}

}  // namespace group_embedding
