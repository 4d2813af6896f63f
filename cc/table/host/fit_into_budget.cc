// Rows that are given to a table with a budget: the lowest of these and of its own go.
#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "table/complete_rows.h"
#include "table/host/host_shards.h"
#include "table/order_of_rows.h"

namespace group_embedding {

Status HostShards::FitIntoBudget(const KeyedRowsView& given, KeyedRows* kept, bool* is_changed) {
  *is_changed = false;
  if (budget_ == nullptr || given.num_keys == 0) return {};
  // A call of its own: rows that the last one located are no longer used.
  if (lower_tier() != nullptr) lower_tier()->StartLocating();
  if (given.has_places) return {};
  const Budget& budget = options().budget;
  std::vector<KeyInfo> infos(given.num_keys);
  Status status = Describe(given.keys, given.num_keys, infos.data());
  if (!status.ok()) return status;
  std::unordered_map<int64_t, int64_t> new_keys;  // and where they come last
  std::unordered_set<int64_t> all;
  for (int64_t i = 0; i < given.num_keys; ++i) {
    all.insert(given.keys[i]);
    if (infos[i].tier == kNoTier) new_keys[given.keys[i]] = i;
  }
  const int64_t table_keys = BudgetKeys();
  std::vector<int64_t> num_to_go;
  status = CountShares(&num_to_go);
  if (!status.ok()) return status;
  for (const auto& [key, i] : new_keys) ++num_to_go[budget.ShareOf(key)];
  for (int64_t s = 0; s < budget.shares_of_rank(); ++s) {
    num_to_go[s] = budget.NumToGo(num_to_go[s], budget.MaxKeysOfShare(s, table_keys));
    *is_changed = *is_changed || num_to_go[s] > 0;
  }
  if (!*is_changed) return {};
  status = CompleteRows(*this, given, kept);
  if (!status.ok()) return status;
  const auto orders = OrderOfRows(options(), last_step(), *kept, score_slot_);
  std::vector<EvictionCandidate> candidates, lowest;
  for (const auto& [key, i] : new_keys) candidates.push_back({orders[i], key, kNoRow});
  status = FindLowest(num_to_go, last_step(), SerialFor, &lowest, candidates, all);
  if (!status.ok()) return status;
  std::unordered_set<int64_t> dropped;
  const auto end = std::remove_if(lowest.begin(), lowest.end(), [&](const auto& candidate) {
    return new_keys.count(candidate.key) > 0 && dropped.insert(candidate.key).second;
  });
  lowest.erase(end, lowest.end());
  budget_->num_without_place += static_cast<int64_t>(dropped.size());
  DropRows(dropped, kept);
  return EraseLowest(lowest, {}, SerialFor);
}

}  // namespace group_embedding
