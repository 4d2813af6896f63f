#include "table/file/places_of_saved.h"

#include <algorithm>
#include <utility>

#include "table/order_of_row.h"
#include "table/order_of_rows.h"

namespace group_embedding {

PlacesOfSaved::PlacesOfSaved(EmbeddingTable* table)
    : table_(table), budget_(table->options().budget), shares_(budget_.shares_of_rank()) {}

bool PlacesOfSaved::NextPass() {
  if (num_passes_++ == 0) return true;
  if (num_passes_ > 2) return false;
  const int64_t table_keys = table_->budget_counts().max_keys;
  bool any = false;
  for (size_t s = 0; s < shares_.size(); ++s) {
    Share& share = shares_[s];
    share.max_keys = budget_.MaxKeysOfShare(static_cast<int64_t>(s), table_keys);
    const int64_t num_to_go = budget_.NumToGo(share.num_keys, share.max_keys);
    if (num_to_go == 0) continue;
    share.lowest = std::make_unique<LowestKeys>(num_to_go);
    any = true;
  }
  const bool by_minute = budget_.first == EvictFirst::kEarliest;
  for (size_t s = 0; s < table_->slots().size(); ++s) {
    const std::string& name = table_->slots()[s].name;
    if (name == (by_minute ? kTimeSlot : kScoreSlot)) score_slot_ = static_cast<int>(s);
    if (name == kBornSlot) born_slot_ = static_cast<int>(s);
  }
  return any;
}

void PlacesOfSaved::Add(const KeyedRows& rows) {
  if (num_passes_ == 1) {
    for (const int64_t key : rows.keys) ++shares_[budget_.ShareOf(key)].num_keys;
    return;
  }
  const auto orders = OrderOfRows(table_->options(), table_->time().last_step, rows, score_slot_);
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    Share& share = shares_[budget_.ShareOf(rows.keys[i])];
    if (share.lowest == nullptr) continue;
    const EvictionCandidate candidate = {orders[i], rows.keys[i], kNoRow};
    if (IsSafe(rows, i)) {
      share.safe.push_back(candidate);
    } else {
      share.lowest->Add({candidate});
    }
  }
}

bool PlacesOfSaved::IsSafe(const KeyedRows& rows, size_t i) const {
  if (born_slot_ < 0 || rows.slots[born_slot_].empty()) return false;
  const OrderOfRow order(table_->options(), table_->time().last_step);
  return order.IsSafeNow(rows.slots[born_slot_].data() + i * sizeof(uint32_t));
}

std::unordered_set<int64_t> PlacesOfSaved::TakeWithoutPlace() {
  std::unordered_set<int64_t> keys;
  for (Share& share : shares_) {
    if (share.lowest == nullptr) continue;
    const std::vector<EvictionCandidate> lowest = share.lowest->Take();
    for (const EvictionCandidate& candidate : lowest) keys.insert(candidate.key);
    const auto num_lowest = static_cast<int64_t>(lowest.size());
    const int64_t num_more = share.num_keys - num_lowest - share.max_keys;
    if (num_more <= 0) continue;
    std::nth_element(share.safe.begin(), share.safe.begin() + (num_more - 1), share.safe.end());
    for (int64_t i = 0; i < num_more; ++i) keys.insert(share.safe[i].key);
  }
  return keys;
}

}  // namespace group_embedding
