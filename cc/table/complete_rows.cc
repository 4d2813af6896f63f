#include "table/complete_rows.h"

#include <algorithm>

namespace group_embedding {

Status AppendCounts(const EmbeddingTable& table, const int64_t* keys, int64_t num_keys,
                    std::vector<int64_t>* counts, std::vector<int64_t>* versions) {
  std::vector<KeyInfo> infos(num_keys);
  Status status = table.Describe(keys, num_keys, infos.data());
  for (const KeyInfo& info : infos) {
    counts->push_back(info.tier == kNoTier ? 0 : info.count);
    versions->push_back(info.tier == kNoTier ? -1 : info.version);
  }
  return status;
}

Status CompleteRows(const EmbeddingTable& table, const KeyedRowsView& given, KeyedRows* rows) {
  auto copy = [&given](const char* from, int64_t width, DataType dtype) {
    return std::vector<char>(from, from + given.num_keys * width * SizeOf(dtype));
  };
  rows->keys.assign(given.keys, given.keys + given.num_keys);
  rows->values = copy(given.values, table.options().dim, table.options().dtype);
  rows->slots.resize(given.slots.size());
  for (size_t s = 0; s < given.slots.size(); ++s) {
    const SlotOptions& slot = table.slots()[s];
    if (given.slots[s] != nullptr) rows->slots[s] = copy(given.slots[s], slot.width, slot.dtype);
  }
  if (given.counts == nullptr) {
    return AppendCounts(table, given.keys, given.num_keys, &rows->counts, &rows->versions);
  }
  rows->counts.resize(given.num_keys);
  std::transform(given.counts, given.counts + given.num_keys, rows->counts.begin(),
                 [](int64_t count) { return std::min(count, kMaxCount); });
  rows->versions.assign(given.versions, given.versions + given.num_keys);
  return {};
}

void DropRows(const std::unordered_set<int64_t>& keys, KeyedRows* rows) {
  std::vector<size_t> left;
  for (size_t i = 0; i < rows->keys.size(); ++i) {
    if (keys.count(rows->keys[i]) == 0) left.push_back(i);
  }
  const size_t num_keys = rows->keys.size();
  const auto keep = [&](auto* array) {
    const size_t width = array->size() / num_keys;  // 0: it was not given
    auto to = array->begin();
    for (const size_t i : left) to = std::copy_n(array->begin() + i * width, width, to);
    array->resize(left.size() * width);
  };
  if (left.size() == num_keys) return;
  for (auto* numbers : {&rows->counts, &rows->versions}) keep(numbers);
  for (std::vector<char>& slot : rows->slots) keep(&slot);
  keep(&rows->values);
  keep(&rows->keys);
}

}  // namespace group_embedding
