#include "table/embedding_table.h"

namespace group_embedding {

Status EmbeddingTable::Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const {
  std::vector<int64_t> rows(num_keys);
  Find(keys, num_keys, rows.data());
  for (int64_t i = 0; i < num_keys; ++i) {
    infos[i] = {kNoTier, -1, -1};
    if (rows[i] == kNoRow) continue;
    const RowInfo info = Info(rows[i]);
    infos[i] = {0, info.count, info.version};
  }
  return {};
}

Status EmbeddingTable::SetTime(int64_t) {
  return "table '" + options().name + "': expected a table that evicts by time, got one that " +
         "does not; make it with evict_after_minutes=... or evict='earliest'";
}

Status EmbeddingTable::SetScores(const int64_t*, int64_t, const float*) {
  return "table '" + options().name + "': expected a table that evicts by score, got one that " +
         "does not; make it with evict='score'";
}

}  // namespace group_embedding
