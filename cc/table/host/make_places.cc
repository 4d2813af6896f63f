// A table in host memory keeps its budget: it counts new keys, evicts the lowest keys, and chooses
// the new keys that get no place.
#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "core/rows.h"
#include "table/complete_rows.h"
#include "table/host/budget_bytes.h"
#include "table/host/host_shards.h"

namespace group_embedding {
namespace {

constexpr int64_t kRows = 1 << 14;      // that one thread looks at, at a time
constexpr int64_t kRowNanoseconds = 3;  // about
constexpr int64_t kEraseNanoseconds = 100;
constexpr int64_t kAhead = 16;             // keys whose entries are asked for
constexpr int64_t kLeastLog = 1 << 16;     // erased keys that are remembered for followers

using LowestOfShares = std::vector<std::unique_ptr<LowestKeys>>;

// The order of a key, from its row in memory or in a record. `slots`: the address of a slot of it.
class OrderOfRow {
 public:
  OrderOfRow(const TableOptions& options, int64_t step) : options_(options), step_(step) {}

  uint64_t Score(int64_t count, int64_t version, const char* values, const char* score) const {
    const Budget& budget = options_.budget;
    switch (budget.first) {
      case EvictFirst::kLeastRecent:
        break;
      case EvictFirst::kLeastFrequent:
        return static_cast<uint64_t>(count);
      case EvictFirst::kDecayedFrequency:
        return static_cast<uint64_t>(DecayedCount(count, version, step_, budget.decay_steps));
      case EvictFirst::kSmallestNorm:
        return NormOf(values);
      case EvictFirst::kLowestScore: {
        float number;
        std::memcpy(&number, score, sizeof(number));
        return eviction_order::OfFloat(number);
      }
    }
    return eviction_order::OfInteger(version);
  }
  EvictionOrder Order(uint64_t score, int64_t version, int64_t key) const {
    return {score, eviction_order::OfInteger(version), HostShards::HashOf(key)};
  }
  bool IsSafeNow(const char* born) const {
    uint32_t mark;
    std::memcpy(&mark, born, sizeof(mark));
    return IsSafe(mark, step_, options_.budget.safe_steps);
  }

 private:
  uint64_t NormOf(const char* values) const {
    uint64_t order = 0;
    ForDataType(options_.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      order = eviction_order::OfNorm(reinterpret_cast<const T*>(values), options_.dim);
    });
    return order;
  }

  const TableOptions& options_;
  const int64_t step_;
};

}  // namespace

Status HostShards::MakeBudgetSlots() {
  const Budget& budget = options().budget;
  if (budget_ == nullptr) return {};
  void* array;
  Status status;
  auto make = [&](const char* name, int* slot) {
    *slot = static_cast<int>(slots().size());
    if (status.ok()) status = Slot({name, 1, DataType::kFloat32, 0}, &array);
  };
  if (budget.first == EvictFirst::kLowestScore) make(kScoreSlot, &score_slot_);
  if (budget.safe_steps > 0) make(kBornSlot, &born_slot_);
  if (status.ok() && budget.max_bytes > 0) {
    store_.LimitRows(BudgetKeys() + BudgetBytes::MoreRows(BudgetKeys()));
  }
  if (status.ok() && BudgetKeys() < budget.shares_of_rank()) {
    status = "table '" + options().name + "': expected a budget for at least " +
             std::to_string(budget.shares_of_rank()) + " keys, got one for " +
             std::to_string(BudgetKeys());
  }
  return status;
}

int64_t HostShards::BudgetKeys(const std::vector<SlotOptions>& more_slots) const {
  const Budget& budget = options().budget;
  if (budget.max_bytes > 0) {
    const BudgetBytes bytes(options(), store_.BytesPerRow(more_slots), slots().size() + more_slots.size());
    return bytes.NumKeys(budget.max_bytes);
  }
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
    if (store_.IsKeys(row)) ++(*num_keys)[budget.ShareOf(store_.Info(row).key)];
  }
  if (lower_tier() == nullptr) return {};
  return lower_tier()->ForEachBelow(
      [&](int64_t key, const RecordHead&, const char*, const char*) {
        ++(*num_keys)[budget.ShareOf(key)];
      });
}

Status HostShards::MakePlaces(const std::vector<int64_t>& new_keys, int64_t step,
                              const std::vector<int64_t>& own_batches,
                              const ParallelFor& parallel_for,
                              std::unordered_set<int64_t>* without_place) {
  budget_->last_step = std::max(budget_->last_step.load(), step);
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
    std::sort(keys.begin(), keys.end(), [](int64_t a, int64_t b) { return HashOf(a) > HashOf(b); });
    without_place->insert(keys.begin() + places, keys.end());
  }
  budget_->num_without_place += static_cast<int64_t>(without_place->size());
  return {};
}

Status HostShards::EvictLowest(const std::vector<int64_t>& num_to_go, int64_t step,
                               const std::vector<int64_t>& own_batches,
                               const ParallelFor& parallel_for) {
  if (std::all_of(num_to_go.begin(), num_to_go.end(), [](int64_t n) { return n == 0; })) return {};
  std::vector<EvictionCandidate> lowest;
  Status status = FindLowest(num_to_go, step, parallel_for, &lowest);
  return status.ok() ? EraseLowest(lowest, own_batches, parallel_for) : status;
}

Status HostShards::FindLowest(const std::vector<int64_t>& num_to_go, int64_t step,
                              const ParallelFor& parallel_for,
                              std::vector<EvictionCandidate>* found,
                              const std::vector<EvictionCandidate>& more,
                              const std::unordered_set<int64_t>& kept) {
  const Budget& budget = options().budget;
  LowestOfShares lowest;
  for (const int64_t count : num_to_go) {
    lowest.push_back(count == 0 ? nullptr : std::make_unique<LowestKeys>(count));
  }
  for (const EvictionCandidate& candidate : more) {
    const auto& of_share = lowest[budget.ShareOf(candidate.key)];
    if (of_share != nullptr) of_share->Add({candidate});
  }
  const OrderOfRow order_of(options(), step);
  TierBelowMemory* const tier = lower_tier();
  const int64_t oldest_batch = store_.OldestBatch();
  const int64_t num_chunks = (store_.num_rows() + kRows - 1) / kRows;
  parallel_for(num_chunks, kRows * kRowNanoseconds, [&](int64_t begin, int64_t end) {
    std::vector<std::vector<EvictionCandidate>> some(lowest.size());
    std::vector<EvictionOrder> bounds(lowest.size());
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      for (size_t s = 0; s < lowest.size(); ++s) {
        if (lowest[s] != nullptr) bounds[s] = lowest[s]->bound();
        some[s].clear();
      }
      const int64_t end_row = std::min((chunk + 1) * kRows, store_.num_rows());
      for (int64_t row = std::max(chunk * kRows, first_row()); row < end_row; ++row) {
        const RowInfo& info = store_.Info(row);
        if (info.count < 0 || info.clock >= oldest_batch) continue;  // no key's, or just trained
        const int64_t share = budget.ShareOf(info.key);
        if (lowest[share] == nullptr) continue;
        const char* score = score_slot_ < 0 ? nullptr : store_.SlotRow(score_slot_, row);
        const uint64_t by_score =
            order_of.Score(info.count, info.version, store_.Row(row), score);
        if (by_score > bounds[share].score) continue;
        const EvictionOrder order = order_of.Order(by_score, info.version, info.key);
        if (!(order < bounds[share])) continue;
        if (born_slot_ >= 0 && order_of.IsSafeNow(store_.SlotRow(born_slot_, row))) continue;
        if (tier != nullptr && tier->IsUsed(row)) continue;
        if (!kept.empty() && kept.count(info.key) > 0) continue;
        some[share].push_back({order, info.key, row});
      }
      for (size_t s = 0; s < lowest.size(); ++s) {
        if (lowest[s] != nullptr) lowest[s]->Add(some[s]);
      }
    }
  });
  Status status;
  if (tier != nullptr) {
    int64_t score_at = 0, born_at = 0;
    for (int s = 0; s < score_slot_; ++s) score_at += store_.slot_row_bytes(s);
    for (int s = 0; s < born_slot_; ++s) born_at += store_.slot_row_bytes(s);
    status = tier->ForEachBelow([&](int64_t key, const RecordHead& head, const char* values,
                                    const char* slots) {
      const int64_t share = budget.ShareOf(key);
      if (lowest[share] == nullptr) return;
      const uint64_t score = order_of.Score(head.count, head.version, values, slots + score_at);
      const EvictionOrder order = order_of.Order(score, head.version, key);
      if (!(order < lowest[share]->bound())) return;
      if (born_slot_ >= 0 && order_of.IsSafeNow(slots + born_at)) return;
      if (!kept.empty() && kept.count(key) > 0) return;
      lowest[share]->Add({{order, key, kNoRow}});
    });
  }
  for (const auto& of_share : lowest) {
    if (of_share == nullptr) continue;
    const std::vector<EvictionCandidate> some = of_share->Take();
    found->insert(found->end(), some.begin(), some.end());
  }
  return status;
}

Status HostShards::EraseLowest(const std::vector<EvictionCandidate>& lowest,
                               const std::vector<int64_t>& own_batches,
                               const ParallelFor& parallel_for) {
  // What may find no memory comes first: what follows is done whole.
  std::vector<int64_t>& erased = *changes_.erased();
  erased.reserve(erased.size() + lowest.size());
  std::vector<int64_t> rows, below;
  rows.reserve(lowest.size());
  std::vector<std::vector<EvictionCandidate>> of_shard(kNumShards);
  for (const EvictionCandidate& candidate : lowest) {
    if (candidate.row == kNoRow) {
      below.push_back(candidate.key);
    } else {
      rows.push_back(candidate.row);
      of_shard[ShardIndex(candidate.order.hash)].push_back(candidate);
    }
  }
  const bool hands_out = options().budget.hands_out != HandsOut::kNothing;
  if (hands_out) HandOut(lowest);
  if (lower_tier() != nullptr && !below.empty()) {
    const Status status =
        lower_tier()->EraseBelow(below, hands_out ? &budget_->evicted : nullptr);
    if (!status.ok()) return status;
  }
  BeforeWrite(rows.data(), static_cast<int64_t>(rows.size()));
  const int64_t cost = kEraseNanoseconds * (static_cast<int64_t>(lowest.size()) / kNumShards + 1);
  parallel_for(kNumShards, cost, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      Shard& shard = shards_[s];
      const std::vector<EvictionCandidate>& some = of_shard[s];
      std::lock_guard<std::mutex> lock(shard.mutex);
      for (size_t i = 0; i < some.size(); ++i) {
        if (i + kAhead < some.size()) shard.index.Prefetch(some[i + kAhead].order.hash);
        shard.index.Erase(shard.index.Find(some[i].key, some[i].order.hash), HashOf);
        store_.Info(some[i].row).count = -1;
      }
      shard.num_rows -= static_cast<int64_t>(some.size());
    }
  });
  store_.Release(rows, own_batches);
  for (const EvictionCandidate& candidate : lowest) erased.push_back(candidate.key);
  changes_.Limit(std::max(kLeastLog, BudgetKeys() / 2));
  budget_->num_evicted += static_cast<int64_t>(lowest.size());
  return {};
}

void HostShards::CountCounted() {
  const Budget& budget = options().budget;
  BudgetUse& use = *budget_;
  use.counted_of_share.assign(budget.shares_of_rank(), 0);
  use.num_counted_then = use.num_counted;
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    if (use.counted_of_share.size() == 1) {
      use.counted_of_share[0] += shard.index.size() - shard.num_rows;
      continue;
    }
    shard.index.ForEach([&](const KeyIndex::Entry& entry) {
      if (entry.state < 0) ++use.counted_of_share[budget.ShareOf(entry.key)];
    });
  }
}

void HostShards::HalveCounts(const ParallelFor& parallel_for) {
  if (options().admission.kind != Admission::Kind::kCounter) return;
  const Budget& budget = options().budget;
  const BudgetUse& use = *budget_;
  const int64_t table_keys = BudgetKeys();
  std::vector<bool> is_over(budget.shares_of_rank());
  const auto find_over = [&](int64_t more) {
    bool any = false;
    for (size_t s = 0; s < use.counted_of_share.size(); ++s) {
      is_over[s] = use.counted_of_share[s] + more > budget.MaxKeysOfShare(s, table_keys);
      any = any || is_over[s];
    }
    return any;
  };
  if (!use.counted_of_share.empty() && !find_over(use.num_counted - use.num_counted_then)) return;
  for (CountCounted(); find_over(0); CountCounted()) {
    parallel_for(kNumShards, kRows, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        Shard& shard = shards_[s];
        std::lock_guard<std::mutex> lock(shard.mutex);
        std::vector<int64_t> forgotten;
        shard.index.ForEach([&](KeyIndex::Entry& entry) {
          if (entry.state >= 0 || !is_over[budget.ShareOf(entry.key)]) return;
          shard.BeforeChange(entry.key, entry.state);
          if (entry.state == -1) {
            forgotten.push_back(entry.key);
          } else {
            entry.state = -(-entry.state / 2);
          }
        });
        for (const int64_t key : forgotten) {
          shard.index.Erase(shard.index.Find(key, HashOf(key)), HashOf);
        }
      }
    });
  }
}

// Keeps what there is of those in memory.
void HostShards::HandOut(const std::vector<EvictionCandidate>& lowest) {
  KeyedRows& rows = budget_->evicted;
  if (static_cast<int64_t>(rows.keys.size()) >= BudgetBytes::MoreRows(BudgetKeys())) {
    budget_->num_missed += static_cast<int64_t>(rows.keys.size());
    rows = {};
  }
  for (const EvictionCandidate& candidate : lowest) {
    if (candidate.row == kNoRow) continue;
    const RowInfo& info = store_.Info(candidate.row);
    rows.keys.push_back(info.key);
    rows.counts.push_back(info.count);
    rows.versions.push_back(info.version);
    if (options().budget.hands_out != HandsOut::kRows) continue;
    const char* values = store_.Row(candidate.row);
    rows.values.insert(rows.values.end(), values, values + store_.row_bytes());
  }
}

BudgetCounts HostShards::budget_counts() const {
  if (budget_ == nullptr) return {};
  return {BudgetKeys(), budget_->num_evicted, budget_->num_without_place, budget_->num_missed};
}

void HostShards::TakeEvicted(KeyedRows* rows) {
  if (budget_ == nullptr) return;
  *rows = std::exchange(budget_->evicted, {});
  if (options().budget.hands_out != HandsOut::kRows) rows->values.clear();
  rows->slots.clear();
}

Status HostShards::SetScores(const int64_t* keys, int64_t num_keys, const float* scores) {
  if (score_slot_ < 0) return EmbeddingTable::SetScores(keys, num_keys, scores);
  std::unordered_map<int64_t, float> highest;  // a key may come several times
  for (int64_t i = 0; i < num_keys; ++i) {
    float& score = highest.try_emplace(keys[i], scores[i]).first->second;
    score = std::max(score, scores[i]);
  }
  const TableBatch batch(this);  // the next save of changes has the rows
  for (const auto& [key, score] : highest) {
    int64_t row;
    Find(&key, 1, &row);
    if (row == kNoRow) continue;
    BeforeWrite(&row, 1);
    std::memcpy(store_.SlotRow(score_slot_, row), &score, sizeof(score));
    store_.Info(row).clock = store_.clock();
  }
  return {};
}

Status HostShards::Slot(const SlotOptions& slot, void** array) {
  const bool is_new = BytesOfNewSlots(slots(), {slot}) > 0;
  if (is_new && options().budget.max_bytes > 0) {
    const Status status = ShrinkFor(slot);
    if (!status.ok()) return status;
  }
  return store_.Slot(slot, array);
}

// Rows become longer, so fewer keys fit into so many bytes.
Status HostShards::ShrinkFor(const SlotOptions& slot) {
  const Budget& budget = options().budget;
  const int64_t table_keys = BudgetKeys({slot});
  const int64_t max_rows = table_keys + BudgetBytes::MoreRows(table_keys);
  if (table_keys == 0 || store_.num_rows() - first_row() > max_rows) {
    return "table '" + options().name + "', slot '" + slot.name + "': expected a budget for the " +
           std::to_string(store_.num_rows() - first_row()) + " rows that the table has used, got " +
           std::to_string(budget.max_bytes) + " bytes, which with this slot hold " +
           std::to_string(max_rows) + "; raise max_bytes, or train with the optimizer that needs " +
           "the slot from the first step on";
  }
  CompleteEviction();
  std::vector<int64_t> num_to_go;
  Status status = CountShares(&num_to_go);
  for (int64_t s = 0; s < budget.shares_of_rank(); ++s) {
    const int64_t max_keys = budget.MaxKeysOfShare(s, table_keys);
    const int64_t kept = num_to_go[s] <= max_keys ? num_to_go[s] : budget.NumKept(max_keys, 0);
    num_to_go[s] -= kept;
  }
  if (status.ok()) status = EvictLowest(num_to_go, budget_->last_step, {}, SerialFor);
  if (status.ok()) store_.LimitRows(max_rows);
  return status;
}

Status HostShards::FitIntoBudget(const KeyedRowsView& given, KeyedRows* kept, bool* is_changed) {
  *is_changed = false;
  if (budget_ == nullptr || given.num_keys == 0) return {};
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
    const int64_t max_keys = budget.MaxKeysOfShare(s, table_keys);
    num_to_go[s] = num_to_go[s] <= max_keys ? 0 : num_to_go[s] - budget.NumKept(max_keys, 0);
    *is_changed = *is_changed || num_to_go[s] > 0;
  }
  if (!*is_changed) return {};
  status = CompleteRows(*this, given, kept);
  if (!status.ok()) return status;
  const OrderOfRow order_of(options(), budget_->last_step);
  std::vector<EvictionCandidate> candidates, lowest;
  for (const auto& [key, i] : new_keys) {
    const bool has_score = score_slot_ >= 0 && kept->slots.size() > static_cast<size_t>(score_slot_) &&
                           !kept->slots[score_slot_].empty();
    const float none = 0;
    const char* score = has_score ? kept->slots[score_slot_].data() + i * sizeof(float)
                                  : reinterpret_cast<const char*>(&none);
    const char* values = kept->values.data() + i * store_.row_bytes();
    const int64_t version = kept->versions[i];
    candidates.push_back(
        {order_of.Order(order_of.Score(kept->counts[i], version, values, score), version, key), key,
         kNoRow});
  }
  status = FindLowest(num_to_go, budget_->last_step, SerialFor, &lowest, candidates, all);
  if (!status.ok()) return status;
  std::unordered_set<int64_t> dropped;
  const auto end = std::remove_if(lowest.begin(), lowest.end(), [&](const auto& candidate) {
    return new_keys.count(candidate.key) > 0 && dropped.insert(candidate.key).second;
  });
  lowest.erase(end, lowest.end());
  budget_->num_without_place += static_cast<int64_t>(dropped.size());
  KeepRows(dropped, kept);
  return EraseLowest(lowest, {}, SerialFor);
}

// Drops rows of those keys.
void HostShards::KeepRows(const std::unordered_set<int64_t>& dropped, KeyedRows* rows) const {
  KeyedRows kept;
  kept.slots.resize(rows->slots.size());
  auto append = [](const std::vector<char>& from, size_t i, int64_t bytes, std::vector<char>* to) {
    if (!from.empty()) to->insert(to->end(), from.begin() + i * bytes, from.begin() + (i + 1) * bytes);
  };
  for (size_t i = 0; i < rows->keys.size(); ++i) {
    if (dropped.count(rows->keys[i]) > 0) continue;
    kept.keys.push_back(rows->keys[i]);
    kept.counts.push_back(rows->counts[i]);
    kept.versions.push_back(rows->versions[i]);
    append(rows->values, i, store_.row_bytes(), &kept.values);
    for (size_t s = 0; s < rows->slots.size(); ++s) {
      append(rows->slots[s], i, store_.slot_row_bytes(s), &kept.slots[s]);
    }
  }
  *rows = std::move(kept);
}

}  // namespace group_embedding
