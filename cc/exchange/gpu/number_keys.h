// Keys of a batch -> numbers that rows can be routed by (route_rows.h): of the keys that owner o
// has of a table, the i-th in ascending order (as unsigned numbers) becomes i * num_ranks + o, as
// if it were the number of a row that is there local row i.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace group_embedding {

// A feature whose ids are keys, spread over the ranks by their hashes (owner.h, kHash).
struct KeyedFeature {
  int64_t first_id;  // in the batch
  int64_t num_ids;
  int64_t table;  // in the group
};

// On the device, in the caller's workspace.
struct NumberedKeys {
  const int64_t* ids;         // [num_ids] the batch's, with numbers in the place of keys
  const int64_t* keys;        // those of each part, each once, part after part (route_rows.h)
  const int64_t* first_keys;  // [num_parts + 1] the first in `keys` of each part; parts of other
                              // tables have none
};

// How many rows a table seems to have whose keys are numbered: each may be on any rank.
int64_t NumberedRows(const std::vector<KeyedFeature>& features, int64_t table, int64_t num_ranks);

// Enqueues on `stream`. ids: [num_ids], fewer than 2^32. `features` ascend.
int64_t NumberKeysWorkspaceBytesCuda(const std::vector<KeyedFeature>& features, int64_t num_ids,
                                     int64_t num_tables, int64_t num_ranks);
cudaError_t NumberKeysCuda(const std::vector<KeyedFeature>& features, const int64_t* ids,
                           int64_t num_ids, int64_t num_tables, int64_t num_ranks, void* workspace,
                           NumberedKeys* numbered, cudaStream_t stream);

}  // namespace group_embedding
