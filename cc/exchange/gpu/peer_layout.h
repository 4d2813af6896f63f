// Where in each rank's peer buffer (peer_buffers.h) what others put there begins:
//
//   | rows from rank 0 | rows from rank 1 | ... | gradients from rank 0 | gradients from rank 1 |
//   ...
//
// as parts (part_bytes.h), table after table. A rank's own lie elsewhere.
#pragma once

#include <cstdint>
#include <vector>

namespace group_embedding {

struct PeerLayout {
  // counts: [asker, owner, table] rows asked for; row_bytes: [table] of a part (part_bytes.h), of
  // which `share` travel: 1, or 0.5 in 16 bits.
  PeerLayout(const std::vector<int64_t>& counts, const std::vector<int64_t>& row_bytes,
             int64_t num_ranks, double share);

  std::vector<int64_t> rows_at;       // [asker, owner] in the asker's peer buffer
  std::vector<int64_t> gradients_at;  // [owner, asker] in the owner's
  std::vector<int64_t> bytes;         // [num_ranks] of all
};

}  // namespace group_embedding
