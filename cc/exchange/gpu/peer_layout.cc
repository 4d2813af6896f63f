#include "exchange/gpu/peer_layout.h"

#include "exchange/gpu/part_bytes.h"

namespace group_embedding {

PeerLayout::PeerLayout(const std::vector<int64_t>& requested, const std::vector<int64_t>& row_bytes,
                       int64_t num_ranks, double wire_ratio)
    : rows_at(num_ranks * num_ranks), gradients_at(num_ranks * num_ranks), bytes(num_ranks) {
  const int64_t num_tables = static_cast<int64_t>(row_bytes.size());
  std::vector<int64_t> between(num_ranks * num_ranks);  // [requester, owner]
  for (int64_t pair = 0; pair < num_ranks * num_ranks; ++pair) {
    if (pair / num_ranks == pair % num_ranks) continue;
    int64_t whole = 0;
    for (int64_t t = 0; t < num_tables; ++t) {
      whole += PartBytes(requested[pair * num_tables + t], row_bytes[t]);
    }
    between[pair] = static_cast<int64_t>(whole * wire_ratio);
  }
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    for (int64_t owner = 0; owner < num_ranks; ++owner) {
      rows_at[rank * num_ranks + owner] = bytes[rank];
      bytes[rank] += between[rank * num_ranks + owner];
    }
    for (int64_t requester = 0; requester < num_ranks; ++requester) {
      gradients_at[rank * num_ranks + requester] = bytes[rank];
      bytes[rank] += between[requester * num_ranks + rank];
    }
  }
}

}  // namespace group_embedding
