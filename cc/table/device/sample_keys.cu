#include <cub/block/block_reduce.cuh>

#include "table/device/locate_rows.cuh"
#include "table/device/sample_keys.h"
#include "table/device/use_state.cuh"

namespace group_embedding {
namespace {

constexpr int kTableThreads = 128;
constexpr int kMostProbes = 64;

// A thread has one table.
__global__ void __launch_bounds__(kTableThreads) BeginSamplesKernel(LocateArgs args) {
  const int64_t t = int64_t{blockIdx.x} * kTableThreads + threadIdx.x;
  if (t < args.num_tables && args.tables[t].sample != nullptr) *args.tables[t].sample = {};
}

// The sum over the threads of a block, in its first thread.
__device__ int64_t SumOfBlock(int64_t mine) {
  using Reduce = cub::BlockReduce<int64_t, kLocateThreads>;
  __shared__ typename Reduce::TempStorage storage;
  __syncthreads();  // nobody uses it any more
  return Reduce(storage).Sum(mine);
}

__device__ void AddTo(unsigned long long* count, int64_t more) {
  if (more != 0) atomicAdd(count, static_cast<unsigned long long>(more));
}

// The key's slot, or null: there is none. is_new: no other id of the key had it before.
__device__ SampledKey* FindSlotOf(const LocateArgs& args, const LocatePlace& place, int64_t key,
                                  SampledKey* slots, int64_t num_slots, bool* is_new) {
  const int64_t table = place.task.table;
  const uint64_t hash = IndexRef::HashOf(key) + static_cast<uint64_t>(table) * 0x9E3779B97F4A7C15;
  const auto home = static_cast<int64_t>(__umul64hi(hash, static_cast<uint64_t>(num_slots)));
  const auto mine = static_cast<unsigned long long>(place.position() + 1);
  for (int64_t probe = 0; probe < kMostProbes; ++probe) {
    SampledKey* slot = &slots[(home + probe) % num_slots];
    unsigned long long first = __ldcg(&slot->first);
    if (first == 0) first = atomicCAS(&slot->first, 0ULL, mine);
    *is_new = first == 0;
    if (*is_new) return slot;
    const auto at = static_cast<int64_t>(first - 1);
    const LocateTask& task = TaskAt(args, at);
    if (task.table == table && task.keys[at - task.first_position] == key) return slot;
  }
  return nullptr;
}

// A thread has one id; the ids of a block are of one table.
__global__ void __launch_bounds__(kLocateThreads)
    SampleKeysKernel(LocateArgs args, SampledKey* slots, int64_t num_slots) {
  const LocatePlace place = LocatePlace::Of(args);
  PartSample* const sample = place.table.sample;
  if (sample == nullptr) return;
  const int64_t key = place.is_key ? place.task.keys[place.i] : 0;
  const int64_t times = place.is_key ? place.times() : 0;
  // Not the bits that choose the slot.
  const uint64_t part = IndexRef::HashOf(key) >> 20 & (UseState::kNumParts - 1);
  bool is_sampled = place.is_key && part == static_cast<uint64_t>(place.table.sampled_part);
  bool is_new = false;
  SampledKey* slot = nullptr;
  if (is_sampled) slot = FindSlotOf(args, place, key, slots, num_slots, &is_new);
  is_sampled = slot != nullptr;
  // The ids of a hot key in a warp are added together, where each came once.
  const bool is_once = place.task.times == nullptr;
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const uint64_t where = is_sampled ? static_cast<uint64_t>(slot - slots) : ~uint64_t{0};
  const unsigned peers = is_once ? __match_any_sync(kFullWarp, where) : 1u << lane;
  if (is_sampled && __ffs(peers) - 1 == lane) {
    const auto more = static_cast<unsigned long long>(is_once ? __popc(peers) : times);
    const unsigned long long total = atomicAdd(&slot->count, more) + more;
    if (total > __ldcg(&sample->most)) atomicMax(&sample->most, total);
  }
  const int64_t call_ids = SumOfBlock(times);
  const int64_t num_ids = SumOfBlock(is_sampled ? times : 0), num_keys = SumOfBlock(is_new);
  if (threadIdx.x != 0) return;
  AddTo(&sample->call_ids, call_ids);
  AddTo(&sample->num_ids, num_ids);
  AddTo(&sample->num_keys, num_keys);
}

}  // namespace

cudaError_t SampleKeys(const LocateArgs& args, int64_t num_blocks, SampledKey* slots,
                       int64_t num_slots, cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(slots, 0, num_slots * sizeof(SampledKey), stream);
  if (error != cudaSuccess) return error;
  const int64_t table_blocks = (args.num_tables + kTableThreads - 1) / kTableThreads;
  BeginSamplesKernel<<<static_cast<unsigned>(table_blocks), kTableThreads, 0, stream>>>(args);
  SampleKeysKernel<<<static_cast<unsigned>(num_blocks), kLocateThreads, 0, stream>>>(args, slots,
                                                                                     num_slots);
  return cudaGetLastError();
}

}  // namespace group_embedding
