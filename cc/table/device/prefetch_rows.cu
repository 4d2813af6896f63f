// The exchange of a table's rows, in five launches: the rows that are wanted, how hot the rows are
// that may leave, those that leave, the exchange, and the state for the next one.
#include <algorithm>
#include <map>
#include <mutex>

#include "core/device_buffer.h"
#include "table/device/exchange_rows.cuh"
#include "table/device/prefetch_rows.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
static_assert(kThreads == PrefetchState::kNumHeats, "a thread has a bucket");
constexpr int kListBlocks = 264;
// Few blocks exchange rows: the dense part of a model computes beside, and a multiprocessor that
// has one of them may have no space for its blocks. With 32 KB of rows in flight each way, a block
// is more than its share of the bus.
constexpr int kExchangeBlocks = 16, kExchangeThreads = 512;
constexpr int kRowsPerWord = 32;
// Victims are looked for among so many rows for each that is wanted, and among so many at least.
constexpr int64_t kSectionPerRow = 8, kLeastSection = 1 << 16;

// The tables of one launch, as a kernel's parameter: 4 KB at most.
struct PrefetchArgs {
  static constexpr int kMost = 4;
  PrefetchRef tables[kMost];
};
static_assert(sizeof(PrefetchArgs) <= 4096, "of kernel parameters");

// The exclusive sum of `count` over the threads of a block; `total` is the sum of all.
__device__ int64_t SumBefore(int count, int* total) {
  __shared__ int sums[kWarpsPerBlock];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int sum = count;
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();  // `sums` of the call before
  if (lane == kWarpSize - 1) sums[warp] = sum;
  __syncthreads();
  int before = 0;
  *total = 0;
  for (int w = 0; w < kWarpsPerBlock; ++w) {
    if (w == warp) before = *total;
    *total += sums[w];
  }
  return before + sum - count;
}

// Appends to a list, block by block: each thread has `count` elements. Returns where its own begin.
__device__ int64_t Reserve(unsigned long long* size, int count) {
  __shared__ int64_t begin;
  int total;
  const int64_t before = SumBefore(count, &total);
  if (threadIdx.x == 0 && total > 0) begin = static_cast<int64_t>(atomicAdd(size, total));
  __syncthreads();
  return begin + before;
}

// A thread has 32 rows of host memory. The list is ascending but for the order of blocks, as the
// bus likes it.
__global__ void __launch_bounds__(kThreads)
    ListWantedKernel(const __grid_constant__ PrefetchArgs args) {
  const PrefetchRef& bring = args.tables[blockIdx.y];
  const MovesRef& moves = bring.table.moves;
  const int64_t first = moves.device_rows / kRowsPerWord;
  const int64_t end = (bring.table.usable_rows + kRowsPerWord - 1) / kRowsPerWord;
  for (int64_t begin = first + int64_t{blockIdx.x} * kThreads; begin < end;
       begin += int64_t{gridDim.x} * kThreads) {
    const int64_t at = begin + threadIdx.x;
    uint32_t rows = at < end ? moves.is_next[at] : 0;
    if (at == first) rows &= kFullWarp << (moves.device_rows % kRowsPerWord);
    int64_t to = Reserve(&bring.state->num_wanted, __popc(rows));
    for (; rows != 0 && to < bring.capacity; rows &= rows - 1) {
      bring.wanted[to++] = at * kRowsPerWord + __ffs(rows) - 1;
    }
  }
}

__device__ int64_t NumWanted(const PrefetchRef& bring) {
  return min(static_cast<int64_t>(bring.state->num_wanted), bring.capacity);
}

// The rows of device memory among which victims are looked for, from `hand` on, around the end.
struct Section {
  int64_t num_rows, size;

  __device__ explicit Section(const PrefetchRef& bring)
      : num_rows(max(bring.table.moves.device_rows - bring.table.first_row, int64_t{0})),
        size(NumWanted(bring) == 0
                 ? 0
                 : min(num_rows, max(kSectionPerRow * NumWanted(bring), kLeastSection))) {}
  __device__ int64_t Row(const PrefetchRef& bring, int64_t i) const {
    return bring.table.first_row + (bring.state->hand + i) % num_rows;
  }
};

// The bucket of a row's heat, in steps of a quarter of its power of two; -1: it may not leave.
__device__ int HeatOf(const PrefetchRef& bring, int64_t row) {
  const DeviceTableRef& table = bring.table;
  if (table.moves.IsNext(row) || !MayMove(table, row, bring.held_since)) return -1;
  const bool is_count = table.moves.cache_strategy == CacheStrategy::kLeastFrequent;
  const int64_t clock = table.moves.ClockOf(row);
  const auto heat = static_cast<unsigned long long>(
      is_count ? table.infos[row].count : max(table.clock - clock, int64_t{0}));
  const int exponent = heat < 4 ? 0 : 61 - __clzll(static_cast<long long>(heat));
  const int bucket = 4 * exponent + static_cast<int>(heat >> exponent);
  return is_count ? bucket : PrefetchState::kNumHeats - 1 - bucket;  // the longest unused go first
}

// A thread has a row.
__global__ void __launch_bounds__(kThreads)
    CountHeatsKernel(const __grid_constant__ PrefetchArgs args) {
  const PrefetchRef& bring = args.tables[blockIdx.y];
  __shared__ uint32_t counts[PrefetchState::kNumHeats];
  counts[threadIdx.x] = 0;
  __syncthreads();
  const Section section(bring);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < section.size;
       i += int64_t{gridDim.x} * kThreads) {
    const int heat = HeatOf(bring, section.Row(bring, i));
    if (heat >= 0) atomicAdd(&counts[heat], 1u);
  }
  __syncthreads();
  if (counts[threadIdx.x] > 0) atomicAdd(&bring.state->histogram[threadIdx.x], counts[threadIdx.x]);
}

// The hottest bucket whose rows leave, if `num_wanted` rows are to; all threads of a block call it.
__device__ int HottestToLeave(const PrefetchRef& bring, int64_t num_wanted) {
  __shared__ int hottest;
  if (threadIdx.x == 0) hottest = PrefetchState::kNumHeats - 1;
  const auto count = static_cast<int>(bring.state->histogram[threadIdx.x]);
  int total;
  const int64_t before = SumBefore(count, &total);
  if (before < num_wanted && num_wanted <= before + count) hottest = threadIdx.x;
  __syncthreads();
  return hottest;
}

// A thread has a row. Which of the hottest rows leave is left to chance.
__global__ void __launch_bounds__(kThreads)
    ListVictimsKernel(const __grid_constant__ PrefetchArgs args) {
  const PrefetchRef& bring = args.tables[blockIdx.y];
  const Section section(bring);
  const int64_t num_wanted = NumWanted(bring);
  const int hottest = HottestToLeave(bring, num_wanted);
  for (int64_t begin = int64_t{blockIdx.x} * kThreads; begin < section.size;
       begin += int64_t{gridDim.x} * kThreads) {
    const int64_t i = begin + threadIdx.x;
    const int64_t row = i < section.size ? section.Row(bring, i) : kNoRow;
    const int heat = row == kNoRow ? -1 : HeatOf(bring, row);
    const bool leaves = heat >= 0 && heat <= hottest;
    const int64_t to = Reserve(&bring.state->num_victims, leaves);
    if (leaves && to < num_wanted) bring.victims[to] = row;
  }
}

// A warp has 16 wanted rows, and the rows that leave for them.
__global__ void __launch_bounds__(kExchangeThreads)
    ExchangePairsKernel(const __grid_constant__ PrefetchArgs args) {
  const PrefetchRef& bring = args.tables[blockIdx.y];
  const int lane = threadIdx.x % kWarpSize, warps = kExchangeThreads / kWarpSize;
  const int64_t count = min(NumWanted(bring), static_cast<int64_t>(bring.state->num_victims));
  const int64_t* rows = lane % 2 == 0 ? bring.wanted : bring.victims;
  const int64_t first = int64_t{blockIdx.x} * warps + threadIdx.x / kWarpSize;
  for (int64_t w = first * kPairsOfWarp; w < count;
       w += int64_t{gridDim.x} * warps * kPairsOfWarp) {
    const int64_t pair = w + lane / 2;
    const int64_t row = pair < count ? rows[pair] : kNoRow;
    const bool moves = row != kNoRow && MayMove(bring.table, row, bring.held_since);
    const bool others = __shfl_xor_sync(kFullWarp, moves, 1);
    ExchangePairs(bring.table, moves && others ? row : kNoRow, lane);
  }
}

// A thread has a bucket.
__global__ void __launch_bounds__(kThreads)
    FinishKernel(const __grid_constant__ PrefetchArgs args) {
  const PrefetchRef& bring = args.tables[blockIdx.x];
  const Section section(bring);
  __syncthreads();
  bring.state->histogram[threadIdx.x] = 0;
  if (threadIdx.x > 0) return;
  if (section.num_rows > 0) {
    bring.state->hand = (bring.state->hand + section.size) % section.num_rows;
  }
  bring.state->num_wanted = bring.state->num_victims = 0;
}

cudaError_t Enqueue(const PrefetchRef* tables, int count, cudaStream_t stream) {
  PrefetchArgs args{};
  std::copy_n(tables, count, args.tables);
  const dim3 listing(kListBlocks, count), exchanging(kExchangeBlocks, count);
  ListWantedKernel<<<listing, kThreads, 0, stream>>>(args);
  CountHeatsKernel<<<listing, kThreads, 0, stream>>>(args);
  ListVictimsKernel<<<listing, kThreads, 0, stream>>>(args);
  ExchangePairsKernel<<<exchanging, kExchangeThreads, 0, stream>>>(args);
  FinishKernel<<<count, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

TierPrefetcher::TierPrefetcher(int64_t max_rows, Status* error)
    : is_next_(ReserveDeviceMemory((max_rows / kRowsPerWord + 1) * sizeof(uint32_t))),
      wanted_(ReserveDeviceMemory(max_rows * sizeof(int64_t))),
      victims_(ReserveDeviceMemory(max_rows * sizeof(int64_t))) {
  cudaError_t failed = cudaMalloc(&state_, sizeof(PrefetchState));
  if (failed == cudaSuccess) failed = cudaMemset(state_, 0, sizeof(PrefetchState));
  if (failed != cudaSuccess) *error = CudaStatus(failed);
}

TierPrefetcher::~TierPrefetcher() {
  cudaDeviceSynchronize();
  cudaFree(state_);
}

cudaError_t TierPrefetcher::ForgetNext(cudaStream_t stream) {
  if (!has_next_) return cudaSuccess;
  has_next_ = false;
  return cudaMemsetAsync(is_next_->data(), 0, is_next_->bytes(), stream);
}

Status TierPrefetcher::Grow(int64_t num_rows, int64_t num_keys) {
  has_next_ = true;
  const int64_t capacity = std::min(num_rows, num_keys) * static_cast<int64_t>(sizeof(int64_t));
  Status status = is_next_->Grow((num_rows + kRowsPerWord - 1) / kRowsPerWord * sizeof(uint32_t));
  if (status.ok()) status = wanted_->Grow(capacity);
  return status.ok() ? victims_->Grow(capacity) : status;
}

void TierPrefetcher::Complete(MovesRef* moves) const {
  moves->is_next = reinterpret_cast<uint32_t*>(is_next_->data());
  moves->num_next = is_next_->bytes() / static_cast<int64_t>(sizeof(uint32_t)) * kRowsPerWord;
}

PrefetchRef TierPrefetcher::ref(const DeviceTableRef& table, int64_t held_since) const {
  return {table,
          state_,
          reinterpret_cast<int64_t*>(wanted_->data()),
          reinterpret_cast<int64_t*>(victims_->data()),
          victims_->bytes() / static_cast<int64_t>(sizeof(int64_t)),
          held_since};
}

cudaStream_t PrefetchStream() {
  static auto* streams = new std::map<int, cudaStream_t>;
  static std::mutex mutex;
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [at, is_new] = streams->try_emplace(device, nullptr);
  if (!is_new) return at->second;
  int least = 0, greatest = 0;
  cudaDeviceGetStreamPriorityRange(&least, &greatest);
  cudaStreamCreateWithPriority(&at->second, cudaStreamNonBlocking, greatest);
  return at->second;
}

cudaError_t EnqueuePrefetching(const std::vector<PrefetchRef>& tables, cudaStream_t stream) {
  const size_t most = PrefetchArgs::kMost;
  for (size_t t = 0; t < tables.size(); t += most) {
    const int count = static_cast<int>(std::min(most, tables.size() - t));
    const cudaError_t error = Enqueue(tables.data() + t, count, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace group_embedding
