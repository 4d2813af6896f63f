#include "exchange/gpu/row_transport.h"

namespace group_embedding {

Transfer LayOut(const WireLayout& layout, const TransferSize& size) {
  Transfer transfer = {layout.PartOffsets(size.sent, layout.rank),
                       layout.PartOffsets(size.received, layout.rank)};
  transfer.is_unpacked = size.is_unpacked;
  return transfer;
}

std::vector<ServedPart> PartsToServe(const WireLayout& layout, const Transfer& transfer,
                                     const RowsToServe& served, TableRange tables) {
  std::vector<ServedPart> parts;
  std::vector<int64_t> first = {0};
  for (const int64_t count : served.counts) first.push_back(first.back() + count);
  // Starts with the next rank, so that ranks do not all write to the same one at a time.
  for (int i = 1; i < layout.num_ranks; ++i) {
    const int n = (layout.rank + i) % layout.num_ranks;
    for (int64_t t = tables.begin; t < tables.end; ++t) {
      const int64_t p = n * layout.num_tables() + t;
      const int64_t at = transfer.sent_at[p] - transfer.sent_at[n * layout.num_tables()];
      parts.push_back(
          {served.shards[t], first[p], served.counts[p], transfer.to[n] + layout.WireBytes(at)});
    }
  }
  return parts;
}

}  // namespace group_embedding
