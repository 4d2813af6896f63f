// The kernels of DeviceHash except locating. All functions enqueue on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include "table/device/device_table_ref.cuh"

namespace group_embedding {

// Fills the index, all of whose slots are empty, from rows [first_row, num_rows) and candidates
// [0, num_candidates), and counts its slots in the state.
cudaError_t FillIndex(const DeviceTableRef& table, int64_t num_rows, int64_t num_candidates,
                      cudaStream_t stream);

// rows[i]: that of keys[i], or kNoRow. Device memory.
cudaError_t FindKeys(const DeviceTableRef& table, const int64_t* keys, int64_t num_keys,
                     int64_t* rows, cudaStream_t stream);

// The numbers in [0, count) whose flag is set, ascending; returns how many, having waited.
int64_t SelectNumbers(const bool* flags, int64_t count, int64_t* numbers, cudaStream_t stream);

// Takes keys out of the index, candidates too. rows[i]: the row that was keys[i]'s, or kNoRow; of a
// key that repeats, one place has it.
cudaError_t TakeOutKeys(const DeviceTableRef& table, const int64_t* keys, int64_t num_keys,
                        int64_t* rows, cudaStream_t stream);

// is_evicted[row]: whether the eviction removes it; kNone: whether it is a key's. [num_rows]
// counts: in device memory; rows that it removes are added.
cudaError_t ChooseEvicted(const DeviceTableRef& table, const Eviction& eviction, int64_t step,
                          int64_t num_rows, bool* is_evicted, ExpiredCounts* counts,
                          cudaStream_t stream);

// keys[i]: that of rows[i].
cudaError_t KeysOfRows(const DeviceTableRef& table, const int64_t* rows, int64_t count,
                       int64_t* keys, cudaStream_t stream);

// infos[i]: what is kept of rows[i]; of kNoRow, the count -1.
cudaError_t InfosOfRows(const DeviceTableRef& table, const int64_t* rows, int64_t count,
                        RowInfo* infos, cudaStream_t stream);

// infos[i].count: what a filter counted of keys[i], if rows[i] is kNoRow and it counted any.
cudaError_t CountsOfCandidates(const DeviceTableRef& table, const int64_t* keys,
                               const int64_t* rows, int64_t num_keys, RowInfo* infos,
                               cudaStream_t stream);

// to[rows[i]] = from[i], of `bytes` each.
cudaError_t ScatterRows(const char* from, const int64_t* rows, int64_t count, int32_t bytes,
                        char* to, cudaStream_t stream);

// to[i] = from[rows[i]], of `bytes` each.
cudaError_t GatherRows(const char* from, const int64_t* rows, int64_t count, int32_t bytes,
                       char* to, cudaStream_t stream);

// Writes the scores of those keys that have a row, which is then one of the table's clock.
// array: [usable_rows], the table's slot of scores.
cudaError_t SetScoresOfRows(const DeviceTableRef& table, const int64_t* rows, const float* scores,
                            int64_t count, float* array, cudaStream_t stream);

// Slots of rows [0, num_rows) at their initial value.
cudaError_t FillSlotArray(const SlotArray& array, int64_t num_rows, cudaStream_t stream);

}  // namespace group_embedding
