#include "exchange/gpu/peer_layout.h"

#include "exchange/gpu/part_bytes.h"

namespace group_embedding {

PeerLayout::PeerLayout(const std::vector<int64_t>& counts, const std::vector<int64_t>& row_bytes,
                       int64_t num_ranks, double share)
    : rows_at(num_ranks * num_ranks), gradients_at(num_ranks * num_ranks), bytes(num_ranks) {
  const int64_t num_tables = static_cast<int64_t>(row_bytes.size());
  std::vector<int64_t> between(num_ranks * num_ranks);  // [asker, owner]
  for (int64_t pair = 0; pair < num_ranks * num_ranks; ++pair) {
    if (pair / num_ranks == pair % num_ranks) continue;
    int64_t whole = 0;
    for (int64_t t = 0; t < num_tables; ++t) {
      whole += PartBytes(counts[pair * num_tables + t], row_bytes[t]);
    }
    between[pair] = static_cast<int64_t>(whole * share);
  }
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    for (int64_t owner = 0; owner < num_ranks; ++owner) {
      rows_at[rank * num_ranks + owner] = bytes[rank];
      bytes[rank] += between[rank * num_ranks + owner];
    }
    for (int64_t asker = 0; asker < num_ranks; ++asker) {
      gradients_at[rank * num_ranks + asker] = bytes[rank];
      bytes[rank] += between[asker * num_ranks + rank];
    }
  }
}

}  // namespace group_embedding
