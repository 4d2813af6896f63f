#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_select.cuh>

#include "core/device_buffer.h"
#include "table/device/device_bloom.cuh"
#include "table/device/device_hash_kernels.h"
#include "table/device/find_one.cuh"
#include "table/device/row_copies.cuh"
#include "table/device/thread_each.cuh"

namespace group_embedding {
namespace {

// A thread has one row or one candidate.
__global__ void FillIndexKernel(DeviceTableRef table, int64_t num_rows, int64_t num_candidates) {
  const int64_t i = ThreadIndex();
  bool is_put = false;
  int64_t key = 0, number = i;
  SlotKind kind = SlotKind::kRow;
  if (i < num_rows) {
    is_put = i >= table.first_row && table.infos[i].count >= 0;
    if (is_put) key = table.infos[i].key;
  } else if (i < num_rows + num_candidates) {
    number = i - num_rows;
    kind = SlotKind::kCandidate;
    is_put = table.candidates[number].count > 0;
    key = table.candidates[number].key;
  }
  if (is_put) table.index.PutInto(table.index.area, IndexRef::HashOf(key), kind, number);
  const int count = __popc(__ballot_sync(kFullWarp, is_put));
  if (count > 0 && threadIdx.x % kWarpSize == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&table.state->used_slots),
              static_cast<unsigned long long>(count));
  }
}

__global__ void FindKeysKernel(DeviceTableRef table, const int64_t* keys, int64_t num_keys,
                               int64_t* rows) {
  const int64_t i = ThreadIndex();
  if (i >= num_keys) return;
  uint64_t word = 0;
  const bool has_row =
      FindSlot(table, keys[i], &word) != nullptr && SlotWord::Kind(word) == SlotKind::kRow;
  rows[i] = has_row ? SlotWord::Number(word) : kNoRow;
}

// A thread has one key.
__global__ void TakeOutKeysKernel(DeviceTableRef table, const int64_t* keys, int64_t num_keys,
                                  int64_t* rows) {
  const int64_t i = ThreadIndex();
  if (i >= num_keys) return;
  rows[i] = kNoRow;
  uint64_t word = 0;
  auto* slot = reinterpret_cast<unsigned long long*>(FindSlot(table, keys[i], &word));
  if (slot == nullptr || atomicCAS(slot, word, kErasedSlot) != word) return;
  table.index.Free(reinterpret_cast<uint64_t*>(slot));
  if (__ldcg(slot) == kEmptySlot) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&table.state->used_slots), ~0ULL);
  }
  const int64_t number = SlotWord::Number(word);
  if (SlotWord::Kind(word) == SlotKind::kRow) {
    table.infos[number].count = -1;
    table.infos[number].clock = table.clock;
    rows[i] = number;
  } else {
    table.candidates[number].count = 0;
    const auto place =
        atomicAdd(reinterpret_cast<unsigned long long*>(&table.state->num_free_candidates), 1ULL);
    table.free_candidates[place] = number;
  }
}

template <typename T>
__device__ float HalfSquares(const DeviceTableRef& table, int64_t row, int lane) {
  const T* values = reinterpret_cast<const T*>(table.Row(row));
  float sum = 0;
  for (int32_t j = lane; j < table.dim; j += kWarpSize) {
    const float value = ToFloat(values[j]);
    sum += value * value;
  }
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, offset);
  }
  return 0.5f * sum;
}

__device__ void Increment(int64_t* count) {
  atomicAdd(reinterpret_cast<unsigned long long*>(count), 1ULL);
}

// A warp has one row.
__global__ void ChooseEvictedKernel(DeviceTableRef table, Eviction eviction, int64_t step,
                                    int64_t num_rows, bool* is_evicted, ExpiredCounts* counts) {
  const int64_t row = ThreadIndex() / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  if (row >= num_rows) return;
  const RowInfo& info = table.infos[row];
  const bool is_keys = row >= table.first_row && info.count >= 0;
  const bool is_old = Has(eviction, Eviction::Kind::kGlobalStep) && info.version >= 0 &&
                      step - info.version > eviction.steps_to_live;
  const uint32_t minute = table.minutes == nullptr ? 0 : table.minutes[row];  // 0: not known
  const bool is_late = Has(eviction, Eviction::Kind::kTime) && minute != 0 &&
                       eviction.minute - minute > eviction.minutes_to_live;
  // An eviction of no kind is that of all keys: see DeviceHash::Clear.
  const bool evict = is_keys && (eviction.kind == Eviction::Kind::kNone || is_old || is_late);
  bool is_small = false;
  if (is_keys && !evict && Has(eviction, Eviction::Kind::kL2Weight)) {
    const float half = table.dtype == DataType::kFloat32 ? HalfSquares<float>(table, row, lane)
                       : table.dtype == DataType::kFloat16
                           ? HalfSquares<__half>(table, row, lane)
                           : HalfSquares<__nv_bfloat16>(table, row, lane);
    is_small = half < eviction.l2_weight;
  }
  if (lane != 0) return;
  is_evicted[row] = evict || is_small;
  if (!is_keys) return;
  if (is_old) {
    Increment(&counts->by_steps);
  } else if (is_late) {
    Increment(&counts->by_minutes);
  } else if (is_small) {
    Increment(&counts->by_norm);
  }
}

__global__ void KeysOfRowsKernel(DeviceTableRef table, const int64_t* rows, int64_t count,
                                 int64_t* keys) {
  const int64_t i = ThreadIndex();
  if (i < count) keys[i] = table.KeyOfRow(rows[i]);
}

__global__ void InfosOfRowsKernel(DeviceTableRef table, const int64_t* rows, int64_t count,
                                  RowInfo* infos) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  infos[i] = rows[i] == kNoRow ? RowInfo{0, -1, -1, -1} : table.infos[rows[i]];
}

// A thread has one key.
__global__ void CountsOfCandidatesKernel(DeviceTableRef table, const int64_t* keys,
                                         const int64_t* rows, int64_t num_keys, RowInfo* infos) {
  const int64_t i = ThreadIndex();
  if (i >= num_keys || rows[i] != kNoRow) return;
  uint64_t word = 0;
  int64_t count = 0;
  if (table.bloom != nullptr) {
    count = DeviceBloom(table.bloom, table.admission).Count(IndexRef::HashOf(keys[i]));
  } else if (FindSlot(table, keys[i], &word) != nullptr) {
    count = table.candidates[SlotWord::Number(word)].count;
  }
  if (count > 0) infos[i].count = count;
}

// A warp has one row.
__global__ void ScatterRowsKernel(const char* from, const int64_t* rows, int64_t count,
                                  int32_t bytes, char* to) {
  const int64_t i = ThreadIndex() / kWarpSize;
  if (i < count) CopyBytes(from + i * bytes, to + rows[i] * bytes, bytes, threadIdx.x % kWarpSize);
}

// A warp has one row.
__global__ void GatherRowsKernel(const char* from, const int64_t* rows, int64_t count,
                                 int32_t bytes, char* to) {
  const int64_t i = ThreadIndex() / kWarpSize;
  if (i < count) CopyBytes(from + rows[i] * bytes, to + i * bytes, bytes, threadIdx.x % kWarpSize);
}

// A thread has one key.
__global__ void SetScoresKernel(DeviceTableRef table, const int64_t* rows, const float* scores,
                                int64_t count, float* array) {
  const int64_t i = ThreadIndex();
  if (i >= count || rows[i] == kNoRow) return;
  array[rows[i]] = scores[i];
  table.infos[rows[i]].clock = table.clock;
}

template <typename T>
__global__ void FillSlotArrayKernel(SlotArray array, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i < count) static_cast<T*>(array.values)[i] = FromFloat<T>(array.initial);
}

}  // namespace

cudaError_t FillIndex(const DeviceTableRef& table, int64_t num_rows, int64_t num_candidates,
                      cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(&table.state->used_slots, 0, sizeof(int64_t), stream);
  if (error != cudaSuccess) return error;
  FillIndexKernel<<<BlocksFor(num_rows + num_candidates), kThreads, 0, stream>>>(table, num_rows,
                                                                                 num_candidates);
  return cudaGetLastError();
}

cudaError_t FindKeys(const DeviceTableRef& table, const int64_t* keys, int64_t num_keys,
                     int64_t* rows, cudaStream_t stream) {
  if (num_keys == 0) return cudaSuccess;
  FindKeysKernel<<<BlocksFor(num_keys), kThreads, 0, stream>>>(table, keys, num_keys, rows);
  return cudaGetLastError();
}

int64_t SelectNumbers(const bool* flags, int64_t count, int64_t* numbers, cudaStream_t stream) {
  const StreamBuffer<int64_t> num_selected(1, stream);
  const thrust::counting_iterator<int64_t> all(0);
  size_t bytes = 0;
  RequireCuda(cub::DeviceSelect::Flagged(nullptr, bytes, all, flags, numbers, num_selected.data(),
                                         count, stream));
  const StreamBuffer<char> scratch(bytes, stream);
  RequireCuda(cub::DeviceSelect::Flagged(scratch.data(), bytes, all, flags, numbers,
                                         num_selected.data(), count, stream));
  return ToHost(num_selected.data(), 1, stream)[0];
}

cudaError_t TakeOutKeys(const DeviceTableRef& table, const int64_t* keys, int64_t num_keys,
                        int64_t* rows, cudaStream_t stream) {
  if (num_keys == 0) return cudaSuccess;
  TakeOutKeysKernel<<<BlocksFor(num_keys), kThreads, 0, stream>>>(table, keys, num_keys, rows);
  return cudaGetLastError();
}

cudaError_t ChooseEvicted(const DeviceTableRef& table, const Eviction& eviction, int64_t step,
                          int64_t num_rows, bool* is_evicted, ExpiredCounts* counts,
                          cudaStream_t stream) {
  ChooseEvictedKernel<<<BlocksFor(num_rows * kWarpSize), kThreads, 0, stream>>>(
      table, eviction, step, num_rows, is_evicted, counts);
  return cudaGetLastError();
}

cudaError_t KeysOfRows(const DeviceTableRef& table, const int64_t* rows, int64_t count,
                       int64_t* keys, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  KeysOfRowsKernel<<<BlocksFor(count), kThreads, 0, stream>>>(table, rows, count, keys);
  return cudaGetLastError();
}

cudaError_t InfosOfRows(const DeviceTableRef& table, const int64_t* rows, int64_t count,
                        RowInfo* infos, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  InfosOfRowsKernel<<<BlocksFor(count), kThreads, 0, stream>>>(table, rows, count, infos);
  return cudaGetLastError();
}

cudaError_t CountsOfCandidates(const DeviceTableRef& table, const int64_t* keys,
                               const int64_t* rows, int64_t num_keys, RowInfo* infos,
                               cudaStream_t stream) {
  if (num_keys == 0) return cudaSuccess;
  CountsOfCandidatesKernel<<<BlocksFor(num_keys), kThreads, 0, stream>>>(table, keys, rows,
                                                                         num_keys, infos);
  return cudaGetLastError();
}

cudaError_t GatherRows(const char* from, const int64_t* rows, int64_t count, int32_t bytes,
                       char* to, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  GatherRowsKernel<<<BlocksFor(count * kWarpSize), kThreads, 0, stream>>>(from, rows, count, bytes,
                                                                          to);
  return cudaGetLastError();
}

cudaError_t SetScoresOfRows(const DeviceTableRef& table, const int64_t* rows, const float* scores,
                            int64_t count, float* array, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  SetScoresKernel<<<BlocksFor(count), kThreads, 0, stream>>>(table, rows, scores, count, array);
  return cudaGetLastError();
}

cudaError_t ScatterRows(const char* from, const int64_t* rows, int64_t count, int32_t bytes,
                        char* to, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  ScatterRowsKernel<<<BlocksFor(count * kWarpSize), kThreads, 0, stream>>>(from, rows, count, bytes,
                                                                           to);
  return cudaGetLastError();
}

cudaError_t FillSlotArray(const SlotArray& array, int64_t num_rows, cudaStream_t stream) {
  const int64_t count = num_rows * array.width;
  if (count == 0) return cudaSuccess;
  ForDeviceType(array.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    FillSlotArrayKernel<T><<<BlocksFor(count), kThreads, 0, stream>>>(array, count);
  });
  return cudaGetLastError();
}

}  // namespace group_embedding
