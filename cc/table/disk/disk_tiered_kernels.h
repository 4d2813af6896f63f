// Kernels of DiskTieredHash. All functions enqueue on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "table/device/device_table_ref.cuh"

namespace group_embedding {

// Returns the distinct keys without a row, ascending as unsigned numbers, and marks the rows of the
// other keys as used by call table.clock, unless a later one has used them. keys: in device memory.
// Waits for the stream.
std::vector<int64_t> FindMissing(const DeviceTableRef& table, const int64_t* keys, int64_t num_keys,
                                 cudaStream_t stream);

// priorities: [num_rows] written: rows with the lowest priority leave memory first. kHeld for a row
// that no key has, or that was located in a call since `held_since`.
inline constexpr uint64_t kHeld = ~uint64_t{0};
cudaError_t MeasurePriority(const DeviceTableRef& table, const int64_t* rows, int64_t num_rows,
                            int64_t held_since, uint64_t* priorities, cudaStream_t stream);

// is_cold: [num_rows] written: whether a row is not held, and its priority is at most max_priority.
cudaError_t ChooseCold(const DeviceTableRef& table, int64_t num_rows, int64_t held_since,
                       uint64_t max_priority, bool* is_cold, cudaStream_t stream);

// is_over: [num_rows] written: whether a row was lent by a call before `held_since`. These rows are
// lent no longer.
cudaError_t EndLending(const DeviceTableRef& table, int64_t num_rows, int64_t held_since,
                       bool* is_over, cudaStream_t stream);

// Copy rows to records (row_records.h) of `record_bytes` bytes, and back, all in device memory.
// keys: [count] the rows' keys. Unpacked rows are marked as used by call table.clock.
cudaError_t PackRows(const DeviceTableRef& table, const int64_t* rows, int64_t count,
                     int64_t record_bytes, char* records, cudaStream_t stream);
cudaError_t UnpackRows(const DeviceTableRef& table, const char* records, const int64_t* keys,
                       const int64_t* rows, int64_t count, int64_t record_bytes,
                       cudaStream_t stream);

}  // namespace group_embedding
