#include "table/embedding_table.h"

#include <ctime>
#include <limits>

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

Status EmbeddingTable::SetTime(int64_t minute) {
  const std::string named = "table '" + options().name + "'";
  if (!options().KeepsTime()) {
    return named + ": expected a table that evicts by time, got one that does not; make it with " +
           "evict_after_minutes=... or evict='earliest'";
  }
  const int64_t most = std::numeric_limits<uint32_t>::max();
  if (minute < 1 || minute > most) {
    return named + ", time: expected 1 to " + std::to_string(most) + " minutes since 1970, got " +
           std::to_string(minute);
  }
  minute_ = minute;
  return {};
}

void EmbeddingTable::GoOnAt(const TableTime& time) {
  last_step_ = time.last_step;
  if (options().KeepsTime() && time.minute > 0) minute_ = time.minute;
}

int64_t EmbeddingTable::Minute() const {
  const int64_t given = minute_;
  return given > 0 ? given : static_cast<int64_t>(std::time(nullptr)) / 60;
}

Status EmbeddingTable::SetScores(const int64_t*, int64_t, const float*) {
  return "table '" + options().name + "': expected a table that evicts by score, got one that " +
         "does not; make it with evict='score'";
}

}  // namespace group_embedding
