#include <algorithm>

#include "table/device/find_one.cuh"
#include "table/device/row_copies.cuh"
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

__device__ bool MayMove(const DeviceTableRef& table, int64_t row, int64_t held_since) {
  return table.infos[row].count >= 0 && table.moves.ClockOf(row) < held_since;
}

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
    if (MayMove(table, row, held_since)) {
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

template <typename Word>
__device__ void ExchangeWords(char* a, char* b, int32_t bytes, int lane) {
  for (int32_t at = lane * sizeof(Word); at < bytes; at += kWarpSize * sizeof(Word)) {
    const Word of_a = __ldcg(reinterpret_cast<const Word*>(a + at));
    const Word of_b = __ldcg(reinterpret_cast<const Word*>(b + at));
    *reinterpret_cast<Word*>(a + at) = of_b;
    *reinterpret_cast<Word*>(b + at) = of_a;
  }
}

// A warp exchanges the contents of rows `a` and `b` of an array.
__device__ void ExchangeRows(void* array, int64_t a, int64_t b, int32_t bytes, int lane) {
  char *of_a = static_cast<char*>(array) + a * bytes, *of_b = static_cast<char*>(array) + b * bytes;
  const auto places = reinterpret_cast<uintptr_t>(array) | bytes;
  if (places % sizeof(uint4) == 0) {
    ExchangeWords<uint4>(of_a, of_b, bytes, lane);
  } else if (places % sizeof(uint32_t) == 0) {
    ExchangeWords<uint32_t>(of_a, of_b, bytes, lane);
  } else {
    ExchangeWords<uint16_t>(of_a, of_b, bytes, lane);
  }
}

// Lane 0 has one of the two rows, lane 1 the other. A warp calls it together.
__device__ void Exchange(const DeviceTableRef& table, int64_t a, int64_t b, int lane) {
  if (table.copies != nullptr)
    CopyForSnapshot(*table.copies, lane == 0 ? a : lane == 1 ? b : kNoRow);
  uint64_t *slot = nullptr, word = 0;
  if (lane < 2) slot = FindSlot(table, table.KeyOfRow(lane == 0 ? a : b), &word);
  __syncwarp();
  ExchangeRows(table.infos, a, b, sizeof(RowInfo), lane);
  ExchangeRows(table.moves.uses, a, b, sizeof(*table.moves.uses), lane);
  ExchangeRows(table.rows, a, b, table.dim * SizeOf(table.dtype), lane);
  for (int s = 0; s < table.num_slot_arrays; ++s) {
    const SlotArray& array = table.slot_arrays[s];
    ExchangeRows(array.values, a, b, array.width * SizeOf(array.dtype), lane);
  }
  if (lane < 2) __stcg(slot, SlotWord::With(word, SlotKind::kRow, lane == 0 ? b : a));
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
  Exchange(table, row, victim.row, lane);
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
  if (failed != cudaSuccess) *error = std::string("CUDA: ") + cudaGetErrorString(failed);
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
          cache_strategy_};
}

cudaError_t RowMoves::Enqueue(const DeviceTableRef& table, int64_t held_since) {
  *static_cast<volatile int32_t*>(is_due_) = 0;
  MoveRowsKernel<<<kMostRows / kWarpsPerBlock, kThreads, 0, stream_>>>(table, held_since);
  FinishMovesKernel<<<1, 1, 0, stream_>>>(table);
  return cudaGetLastError();
}

}  // namespace group_embedding
