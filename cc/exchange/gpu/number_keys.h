// Replaces the keys of a batch by row numbers that can be routed (route_rows.h). The i-th key of a
// table at owner o, in ascending order of unsigned numbers, becomes i * num_ranks + o: the number
// of the row that is local row i of that owner.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace group_embedding {

// A feature whose ids are keys, which are placed on ranks by their hashes (owner.h, kHash).
struct KeyedFeature {
  int64_t first_id;  // in the batch
  int64_t num_ids;
  int64_t table;  // in the group
};

// On the device, in the caller's workspace.
struct NumberedKeys {
  const int64_t* ids;         // [num_ids] the batch's ids, with numbers instead of keys
  const int64_t* keys;        // the distinct keys of each part (route_rows.h), part after part
  const int64_t* first_keys;  // [num_parts + 1] where each part begins in `keys`; parts of tables
                              // without keys are empty
};

// The number of rows to declare for a table whose keys are numbered: an upper bound, as all keys
// may have one owner.
int64_t NumberedRows(const std::vector<KeyedFeature>& features, int64_t table, int64_t num_ranks);

// Enqueues on `stream`. ids: [num_ids], fewer than 2^32. features: ascending by first_id.
int64_t NumberKeysWorkspaceBytesCuda(const std::vector<KeyedFeature>& features, int64_t num_ids,
                                     int64_t num_tables, int64_t num_ranks);
cudaError_t NumberKeysCuda(const std::vector<KeyedFeature>& features, const int64_t* ids,
                           int64_t num_ids, int64_t num_tables, int64_t num_ranks, void* workspace,
                           NumberedKeys* numbered, cudaStream_t stream);

}  // namespace group_embedding
