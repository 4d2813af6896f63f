// The layout of a rank's peer buffer (peer_buffers.h), into which the other ranks write:
//
//   | rows from rank 0 | rows from rank 1 | ... | gradients from rank 0 | gradients from rank 1 |
//   ...
//
// Each section holds parts (part_bytes.h), table after table. A rank's own rows and gradients are
// not in it.
#pragma once

#include <cstdint>
#include <vector>

namespace group_embedding {

struct PeerLayout {
  // requested: [requester, owner, table] numbers of rows; row_bytes: [table] bytes of a row in the
  // tables' type; wire_ratio: the size of a sent element divided by that of a table's element.
  PeerLayout(const std::vector<int64_t>& requested, const std::vector<int64_t>& row_bytes,
             int64_t num_ranks, double wire_ratio);

  std::vector<int64_t> rows_at;       // [requester, owner] offsets in the requester's peer buffer
  std::vector<int64_t> gradients_at;  // [owner, requester] offsets in the owner's peer buffer
  std::vector<int64_t> bytes;         // [num_ranks] size that each rank's peer buffer needs
};

}  // namespace group_embedding
