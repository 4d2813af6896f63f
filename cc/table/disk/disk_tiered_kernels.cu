#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "core/device_buffer.h"
#include "table/device/find_one.cuh"
#include "table/device/row_copies.cuh"
#include "table/device/thread_each.cuh"
#include "table/device/use_state.cuh"
#include "table/disk/disk_tiered_kernels.h"
#include "table/row_records.h"

namespace group_embedding {
namespace {

// A thread has one key.
__global__ void FlagMissingKernel(DeviceTableRef table, const int64_t* keys, int64_t num_keys,
                                  bool* is_missing) {
  const int64_t i = ThreadIndex();
  uint64_t word = 0;
  const bool has_row = i < num_keys && FindSlot(table, keys[i], &word) != nullptr &&
                       SlotWord::Kind(word) == SlotKind::kRow;
  const int64_t row = has_row ? SlotWord::Number(word) : kNoRow;
  CountByTier(table, row);
  if (i >= num_keys) return;
  if (has_row) table.moves.Use(table.infos, row, table.clock);
  is_missing[i] = !has_row;
}

__device__ uint64_t PriorityOf(const DeviceTableRef& table, int64_t row, int64_t held_since) {
  const int64_t count = table.infos[row].count, clock = table.moves.ClockOf(row);
  if (row < table.first_row || count < 0 || clock >= held_since) return kHeld;
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  const uint64_t bounded = static_cast<uint64_t>(min(count, kMost));
  if (table.moves.cache_strategy == CacheStrategy::kLeastRecent)
    return static_cast<uint64_t>(clock);
  return bounded << 32 | (static_cast<uint64_t>(clock) & 0xFFFFFFFF);
}

__global__ void MeasurePriorityKernel(DeviceTableRef table, const int64_t* rows, int64_t num_rows,
                                      int64_t held_since, uint64_t* priorities) {
  const int64_t i = ThreadIndex();
  if (i < num_rows) priorities[i] = PriorityOf(table, rows[i], held_since);
}

__global__ void ChooseColdKernel(DeviceTableRef table, int64_t num_rows, int64_t held_since,
                                 uint64_t max_priority, bool* is_cold) {
  const int64_t row = ThreadIndex();
  if (row >= num_rows) return;
  const uint64_t priority = PriorityOf(table, row, held_since);
  is_cold[row] = priority != kHeld && priority <= max_priority;
}

// A thread has one row.
__global__ void EndLendingKernel(DeviceTableRef table, int64_t num_rows, int64_t held_since,
                                 bool* is_over) {
  const int64_t row = ThreadIndex();
  if (row >= num_rows) return;
  RowInfo& info = table.infos[row];
  is_over[row] = row >= table.first_row && info.count == kLentCount && info.clock < held_since;
  if (is_over[row]) info.count = -1;
}

// Calls copy(address in the row, offset in the record, bytes) for a row's values and each slot.
template <typename Copy>
__device__ void ForParts(const DeviceTableRef& table, int64_t row, int64_t at, const Copy& copy) {
  const int32_t bytes = table.dim * SizeOf(table.dtype);
  copy(table.rows + row * bytes, at, bytes);
  at += bytes;
  for (int s = 0; s < table.num_slot_arrays; ++s) {
    const SlotArray& array = table.slot_arrays[s];
    const int32_t slot_bytes = array.width * SizeOf(array.dtype);
    copy(static_cast<char*>(array.values) + row * slot_bytes, at, slot_bytes);
    at += slot_bytes;
  }
}

__device__ int64_t CountersOf(RowInfo& info, int which) {
  return which == 0 ? info.count : which == 1 ? info.version : info.clock;
}

// A warp has one row.
__global__ void PackRowsKernel(DeviceTableRef table, const int64_t* rows, int64_t count,
                               int64_t record_bytes, char* records) {
  const int64_t i = ThreadIndex() / kWarpSize;
  if (i >= count) return;
  const int lane = threadIdx.x % kWarpSize;
  RowInfo& info = table.infos[rows[i]];
  char* record = records + i * record_bytes;
  // In halves of a word: records need not be aligned.
  constexpr int kHalves = sizeof(int64_t) / sizeof(uint16_t);
  for (int h = lane; h < 3 * kHalves; h += kWarpSize) {
    const auto counter = static_cast<uint64_t>(CountersOf(info, h / kHalves));
    reinterpret_cast<uint16_t*>(record)[h] = static_cast<uint16_t>(counter >> 16 * (h % kHalves));
  }
  ForParts(table, rows[i], sizeof(RecordHead), [&](char* part, int64_t at, int32_t bytes) {
    CopyBytes(part, record + at, bytes, lane);
  });
}

// A warp has one row.
__global__ void UnpackRowsKernel(DeviceTableRef table, const char* records, const int64_t* keys,
                                 const int64_t* rows, int64_t count, int64_t record_bytes) {
  const int64_t i = ThreadIndex() / kWarpSize;
  if (i >= count) return;
  const int lane = threadIdx.x % kWarpSize;
  const char* record = records + i * record_bytes;
  if (lane == 0) {
    int64_t counters[3] = {};
    auto* halves = reinterpret_cast<uint16_t*>(counters);
    for (size_t h = 0; h < sizeof(counters) / sizeof(uint16_t); ++h) {
      halves[h] = reinterpret_cast<const uint16_t*>(record)[h];
    }
    table.infos[rows[i]] = {keys[i], counters[0], counters[1], counters[2]};
    table.moves.SetUse(rows[i], table.clock);
  }
  ForParts(table, rows[i], sizeof(RecordHead), [&](char* part, int64_t at, int32_t bytes) {
    CopyBytes(record + at, part, bytes, lane);
  });
}

}  // namespace

std::vector<int64_t> FindMissing(const DeviceTableRef& table, const int64_t* keys, int64_t num_keys,
                                 cudaStream_t stream) {
  if (num_keys == 0) return {};
  const StreamBuffer<bool> is_missing(num_keys, stream);
  FlagMissingKernel<<<BlocksFor(num_keys), kThreads, 0, stream>>>(table, keys, num_keys,
                                                                  is_missing.data());
  RequireCuda(cudaGetLastError());
  const StreamBuffer<uint64_t> missing(num_keys, stream), sorted(num_keys, stream);
  const StreamBuffer<int64_t> num_selected(1, stream);
  const auto* from = reinterpret_cast<const uint64_t*>(keys);
  auto run = [&](const auto& function) {
    size_t bytes = 0;
    RequireCuda(function(nullptr, bytes));
    const StreamBuffer<char> scratch(bytes, stream);
    RequireCuda(function(scratch.data(), bytes));
    RequireCuda(cudaStreamSynchronize(stream));
  };
  run([&](void* scratch, size_t& bytes) {
    return cub::DeviceSelect::Flagged(scratch, bytes, from, is_missing.data(), missing.data(),
                                      num_selected.data(), num_keys, stream);
  });
  const int64_t count = ToHost(num_selected.data(), 1, stream)[0];
  if (count == 0) return {};
  run([&](void* scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortKeys(scratch, bytes, missing.data(), sorted.data(), count, 0,
                                          64, stream);
  });
  run([&](void* scratch, size_t& bytes) {
    return cub::DeviceSelect::Unique(scratch, bytes, sorted.data(), missing.data(),
                                     num_selected.data(), count, stream);
  });
  const int64_t num_missing = ToHost(num_selected.data(), 1, stream)[0];
  return ToHost(reinterpret_cast<const int64_t*>(missing.data()), num_missing, stream);
}

cudaError_t MeasurePriority(const DeviceTableRef& table, const int64_t* rows, int64_t num_rows,
                            int64_t held_since, uint64_t* priorities, cudaStream_t stream) {
  MeasurePriorityKernel<<<BlocksFor(num_rows), kThreads, 0, stream>>>(table, rows, num_rows,
                                                                      held_since, priorities);
  return cudaGetLastError();
}

cudaError_t ChooseCold(const DeviceTableRef& table, int64_t num_rows, int64_t held_since,
                       uint64_t max_priority, bool* is_cold, cudaStream_t stream) {
  ChooseColdKernel<<<BlocksFor(num_rows), kThreads, 0, stream>>>(table, num_rows, held_since,
                                                                 max_priority, is_cold);
  return cudaGetLastError();
}

cudaError_t EndLending(const DeviceTableRef& table, int64_t num_rows, int64_t held_since,
                       bool* is_over, cudaStream_t stream) {
  EndLendingKernel<<<BlocksFor(num_rows), kThreads, 0, stream>>>(table, num_rows, held_since,
                                                                 is_over);
  return cudaGetLastError();
}

cudaError_t PackRows(const DeviceTableRef& table, const int64_t* rows, int64_t count,
                     int64_t record_bytes, char* records, cudaStream_t stream) {
  PackRowsKernel<<<BlocksFor(count * kWarpSize), kThreads, 0, stream>>>(table, rows, count,
                                                                        record_bytes, records);
  return cudaGetLastError();
}

cudaError_t UnpackRows(const DeviceTableRef& table, const char* records, const int64_t* keys,
                       const int64_t* rows, int64_t count, int64_t record_bytes,
                       cudaStream_t stream) {
  UnpackRowsKernel<<<BlocksFor(count * kWarpSize), kThreads, 0, stream>>>(
      table, records, keys, rows, count, record_bytes);
  return cudaGetLastError();
}

}  // namespace group_embedding
