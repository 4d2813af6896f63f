// What DiskTieredHash runs on the device. All enqueue on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "table/device/device_table_ref.cuh"

namespace group_embedding {

// Those of `keys` that have no row, each once, as unsigned numbers ascending; notes that this call
// uses the rows of the others. Waits. Device memory.
std::vector<int64_t> FindMissing(const DeviceTableRef& table, const int64_t* keys, int64_t num_keys,
                                 cudaStream_t stream);

// warmth[i]: that of rows[i], the less, the colder; kHeld where the row is no key's or was located
// in a call since `held_since`.
inline constexpr uint64_t kHeld = ~uint64_t{0};
cudaError_t MeasureWarmth(const DeviceTableRef& table, const int64_t* rows, int64_t num_rows,
                          int64_t held_since, uint64_t* warmth, cudaStream_t stream);

// is_cold[row]: whether a row is at most that warm, and not held.
cudaError_t ChooseCold(const DeviceTableRef& table, int64_t num_rows, int64_t held_since,
                       uint64_t most_warm, bool* is_cold, cudaStream_t stream);

// Between rows and records (row_records.h) of `record_bytes`, all in device memory. `keys` [count]:
// of the rows.
cudaError_t PackRows(const DeviceTableRef& table, const int64_t* rows, int64_t count,
                     int64_t record_bytes, char* records, cudaStream_t stream);
cudaError_t UnpackRows(const DeviceTableRef& table, const char* records, const int64_t* keys,
                       const int64_t* rows, int64_t count, int64_t record_bytes,
                       cudaStream_t stream);

}  // namespace group_embedding
