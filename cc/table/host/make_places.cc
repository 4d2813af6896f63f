// A table in host memory keeps its budget: it counts new keys, has the lowest keys go, and chooses
// the new keys that get no place.
#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "table/check_table.h"
#include "table/host/budget_bytes.h"
#include "table/host/host_shards.h"
#include "table/order_of_rows.h"

namespace group_embedding {

Status HostShards::MakeOwnSlots() {
  const Budget& budget = options().budget;
  std::vector<SlotOptions> own;
  const auto add = [&own](const char* name) {
    own.push_back({name, 1, DataType::kFloat32, 0});
    return static_cast<int>(own.size()) - 1;
  };
  if (options().KeepsTime()) {
    const int time_slot = add(kTimeSlot);
    if (budget.is_given() && budget.first == EvictFirst::kEarliest) score_slot_ = time_slot;
  }
  if (budget.is_given() && budget.first == EvictFirst::kLowestScore) score_slot_ = add(kScoreSlot);
  if (budget.is_given() && budget.safe_steps > 0) born_slot_ = add(kBornSlot);
  Status status = CheckBudgetKeys(own).In("table '" + options().name + "': ");
  void* array;
  for (const SlotOptions& slot : own) {
    if (status.ok()) status = Slot(slot, &array);
  }
  if (status.ok() && budget.max_bytes > 0) {
    store_.LimitRows(BudgetKeys() + BudgetBytes::MoreRows(BudgetKeys()));
  }
  return status;
}

BudgetBytes HostShards::BytesOfKeys(const std::vector<SlotOptions>& more_slots) const {
  return {options(), store_.BytesPerRow(more_slots),
          slots().size() + NewSlots(slots(), more_slots).size(), has_tier_below()};
}

Status HostShards::CheckBudgetKeys(const std::vector<SlotOptions>& more_slots) const {
  const Budget& budget = options().budget;
  const int64_t least = budget.shares_of_rank();
  if (!budget.is_given() || BudgetKeys(more_slots) >= least) return {};
  if (budget.max_bytes == 0) {
    return "expected a budget for at least " + std::to_string(least) + " keys, got " +
           std::to_string(BudgetKeys(more_slots));
  }
  const BudgetBytes bytes = BytesOfKeys(more_slots);
  return TooFewBytes(budget, bytes.BytesFor(least), bytes.BytesFor(0));
}

int64_t HostShards::BudgetKeys(const std::vector<SlotOptions>& more_slots) const {
  const Budget& budget = options().budget;
  if (budget.max_bytes > 0) return BytesOfKeys(more_slots).NumKeys(budget.max_bytes);
  int64_t total = 0;
  for (int64_t s = 0; s < budget.shares_of_rank(); ++s) {
    total += budget.MaxKeysOfShare(s, budget.max_keys);
  }
  return total;
}

Status HostShards::CountShares(std::vector<int64_t>* num_keys) {
  const Budget& budget = options().budget;
  num_keys->assign(budget.shares_of_rank(), 0);
  // First, as it makes an end of evictions that came with a snapshot.
  const int64_t num_below = lower_tier() == nullptr ? 0 : lower_tier()->NumKeysBelow();
  if (num_keys->size() == 1) {
    (*num_keys)[0] = num_below;
    for (Shard& shard : shards_) (*num_keys)[0] += shard.num_rows.load();
    return {};
  }
  for (int64_t row = first_row(); row < store_.num_rows(); ++row) {
    if (store_.IsKeys(row)) ++(*num_keys)[budget.ShareOf(store_.infos().KeyOf(row))];
  }
  if (lower_tier() == nullptr) return {};
  return lower_tier()->ForEachBelow([&](int64_t key, const RecordHead&, const char*, const char*) {
    ++(*num_keys)[budget.ShareOf(key)];
  });
}

namespace {

bool GoesSecond(int64_t a, int64_t b) { return HostShards::HashOf(a) > HostShards::HashOf(b); }

// Bytes may be held by rows of batches in flight, which are not free yet: then `num_free` of the
// keys get places, and no more.
void LeaveOut(const std::vector<int64_t>& new_keys, int64_t num_free,
              std::unordered_set<int64_t>* without_place) {
  std::vector<int64_t> with;
  for (const int64_t key : new_keys) {
    if (without_place->count(key) == 0) with.push_back(key);
  }
  if (static_cast<int64_t>(with.size()) <= num_free) return;
  std::sort(with.begin(), with.end(), GoesSecond);
  without_place->insert(with.begin() + std::max<int64_t>(0, num_free), with.end());
}

}  // namespace

Status HostShards::MakePlaces(const std::vector<int64_t>& new_keys, int64_t step,
                              const std::vector<int64_t>& own_batches,
                              const ParallelFor& parallel_for,
                              std::unordered_set<int64_t>* without_place) {
  if (new_keys.empty()) return {};
  const Budget& budget = options().budget;
  const int64_t table_keys = BudgetKeys(), num_shares = budget.shares_of_rank();
  std::vector<std::vector<int64_t>> new_of_share(num_shares);
  for (const int64_t key : new_keys) new_of_share[budget.ShareOf(key)].push_back(key);
  std::vector<int64_t> num_keys, num_to_go(num_shares);
  Status status = CountShares(&num_keys);
  for (int64_t s = 0; s < num_shares && status.ok(); ++s) {
    const int64_t max_keys = budget.MaxKeysOfShare(s, table_keys);
    const auto num_new = static_cast<int64_t>(new_of_share[s].size());
    if (num_keys[s] + num_new <= max_keys) continue;
    num_to_go[s] = std::max<int64_t>(0, num_keys[s] - budget.NumKept(max_keys, num_new));
  }
  if (status.ok()) status = EvictLowest(num_to_go, step, own_batches, parallel_for);
  if (status.ok()) status = CountShares(&num_keys);
  if (!status.ok()) return status;
  for (int64_t s = 0; s < num_shares; ++s) {
    std::vector<int64_t>& keys = new_of_share[s];
    const int64_t places = std::max<int64_t>(0, budget.MaxKeysOfShare(s, table_keys) - num_keys[s]);
    if (static_cast<int64_t>(keys.size()) <= places) continue;
    std::sort(keys.begin(), keys.end(), GoesSecond);
    without_place->insert(keys.begin() + places, keys.end());
  }
  const int64_t num_free = lower_tier() == nullptr ? store_.NumFree() : table_keys;
  if (budget.max_bytes > 0) LeaveOut(new_keys, num_free, without_place);
  budget_->num_without_place += static_cast<int64_t>(without_place->size());
  return {};
}

BudgetCounts HostShards::budget_counts() const {
  if (budget_ == nullptr) return {};
  const int64_t num_missed = evicted() == nullptr ? 0 : evicted()->num_missed();
  return {BudgetKeys(), budget_->num_evicted, budget_->num_without_place, num_missed};
}

void HostShards::CountWithoutPlace(int64_t num_keys) {
  if (budget_ != nullptr) budget_->num_without_place += num_keys;
}

void HostShards::TakeEvicted(KeyedRows* rows) {
  if (evicted() != nullptr) *rows = evicted()->Take();
}

void HostShards::DropEvicted() {
  if (evicted() != nullptr) evicted()->Drop();
}

Status HostShards::SetScores(const int64_t* keys, int64_t num_keys, const float* scores) {
  if (options().budget.first != EvictFirst::kLowestScore) {
    return EmbeddingTable::SetScores(keys, num_keys, scores);
  }
  constexpr int64_t kAtOnce = 64;  // whose rows are in memory together
  auto highest = HighestScores(keys, num_keys, scores);
  std::vector<int64_t> some;
  auto set_some = [&]() -> Status {
    const TableBatch batch(this);  // the next save of changes has the rows
    std::vector<int64_t> rows(some.size());
    KeysToLocate request = {this, some.data(), static_cast<int64_t>(some.size()), rows.data(),
                            batch.number()};
    request.is_counted = false;
    const Status status = LocateRowsCpu(&request, 1, Access::kRead, -1, SerialFor);
    for (size_t i = 0; i < some.size() && status.ok(); ++i) {
      if (!store_.IsKeys(rows[i])) continue;
      BeforeWrite(&rows[i], 1);
      std::memcpy(store_.SlotRow(score_slot_, rows[i]), &highest[some[i]], sizeof(float));
      store_.infos().SetTrainedNow(rows[i]);
    }
    some.clear();
    return status;
  };
  Status status;
  for (const auto& [key, score] : highest) {
    some.push_back(key);
    if (static_cast<int64_t>(some.size()) == kAtOnce && status.ok()) status = set_some();
  }
  return status.ok() ? set_some() : status;
}

Status HostShards::Slot(const SlotOptions& slot, void** array) {
  const bool is_new = BytesOfNewSlots(slots(), {slot}) > 0;
  if (is_new && options().budget.max_bytes > 0) {
    const Status status = ShrinkFor(slot);
    if (!status.ok()) return status;
  }
  return store_.Slot(slot, array);
}

Status HostShards::CheckSlots(const std::vector<SlotOptions>& more) const {
  const Budget& budget = options().budget;
  if (budget.max_bytes == 0 || BytesOfNewSlots(slots(), more) == 0) return {};
  const int64_t table_keys = BudgetKeys(more), num_used = store_.num_rows() - first_row();
  const int64_t max_rows = table_keys + BudgetBytes::MoreRows(table_keys);
  if (num_used == 0) {
    const Status too_small = CheckBudgetKeys(more);
    if (!too_small.ok()) return too_small;
  }
  if (table_keys > 0 && num_used <= max_rows) return {};
  return "expected a budget for the " + std::to_string(num_used) +
         " rows that the table has used, got " + std::to_string(budget.max_bytes) +
         " bytes, which with this slot hold " + std::to_string(max_rows) +
         "; raise max_bytes, or train with the optimizer that needs the slot from the first step "
         "on";
}

// Rows become longer, so fewer keys fit into so many bytes.
Status HostShards::ShrinkFor(const SlotOptions& slot) {
  const Status fits = CheckSlots({slot});
  if (!fits.ok()) return fits.In("table '" + options().name + "', slot '" + slot.name + "': ");
  const Budget& budget = options().budget;
  const int64_t table_keys = BudgetKeys({slot});
  CompleteEviction();
  std::vector<int64_t> num_to_go;
  Status status = CountShares(&num_to_go);
  for (int64_t s = 0; s < budget.shares_of_rank(); ++s) {
    num_to_go[s] = budget.NumToGo(num_to_go[s], budget.MaxKeysOfShare(s, table_keys));
  }
  if (status.ok()) status = EvictLowest(num_to_go, last_step(), {}, SerialFor);
  if (status.ok()) store_.LimitRows(table_keys + BudgetBytes::MoreRows(table_keys));
  return status;
}

}  // namespace group_embedding
