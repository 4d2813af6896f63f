// The lowest keys of a table in host memory are found and evicted.
#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "table/host/budget_bytes.h"
#include "table/host/host_shards.h"
#include "table/order_of_row.h"

namespace group_embedding {
namespace {

constexpr int64_t kRows = 1 << 14;      // that one thread looks at, at a time
constexpr int64_t kRowNanoseconds = 3;  // about
constexpr int64_t kEraseNanoseconds = 100;
constexpr int64_t kAhead = 16;          // keys whose entries are asked for
constexpr int64_t kLeastLog = 1 << 16;  // erased keys that are remembered for followers

constexpr int64_t kLeastGuessed = 1 << 16;  // rows from which on a sample is worth its time

// Descending, so that rows that are taken from the end of the free ones ascend.
std::vector<int64_t> RowsOfBits(const std::vector<uint64_t>& bits) {
  std::vector<int64_t> rows;
  for (int64_t word = static_cast<int64_t>(bits.size()) - 1; word >= 0; --word) {
    for (uint64_t left = bits[word]; left != 0;) {
      const int bit = 63 - __builtin_clzll(left);
      rows.push_back(64 * word + bit);
      left &= ~(uint64_t{1} << bit);
    }
  }
  return rows;
}

}  // namespace

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
  const bool is_plain = num_to_go.size() == 1 && more.empty() && lower_tier() == nullptr;
  if (is_plain && store_.num_rows() > kLeastGuessed) {
    const EvictionOrder bound = GuessBound(num_to_go[0], step);
    LowestOfShares lowest;
    lowest.push_back(std::make_unique<LowestKeys>(num_to_go[0], bound));
    FindInMemory(lowest, step, kept, parallel_for);
    *found = lowest[0]->Take();
    if (static_cast<int64_t>(found->size()) == num_to_go[0]) return {};
    found->clear();
  }
  LowestOfShares lowest;
  for (const int64_t count : num_to_go) {
    lowest.push_back(count == 0 ? nullptr : std::make_unique<LowestKeys>(count));
  }
  for (const EvictionCandidate& candidate : more) {
    const auto& of_share = lowest[options().budget.ShareOf(candidate.key)];
    if (of_share != nullptr) of_share->Add({candidate});
  }
  FindInMemory(lowest, step, kept, parallel_for);
  const Status status = lower_tier() == nullptr ? Status() : FindBelow(lowest, step, kept);
  for (const auto& of_share : lowest) {
    if (of_share == nullptr) continue;
    const std::vector<EvictionCandidate> some = of_share->Take();
    found->insert(found->end(), some.begin(), some.end());
  }
  return status;
}

// A place in the order below which a sample expects some more keys than `count`. It is one of the
// whole order, as many keys may have the same score.
EvictionOrder HostShards::GuessBound(int64_t count, int64_t step) const {
  constexpr int64_t kStride = 61;
  const OrderOfRow order_of(options(), step);
  const RowInfos& infos = store_.infos();
  std::vector<EvictionOrder> orders;
  for (int64_t row = first_row(); row < store_.num_rows(); row += kStride) {
    if (!infos.IsKeys(row)) continue;
    const int64_t version = infos.VersionOf(row);
    const char* score = score_slot_ < 0 ? nullptr : store_.SlotRow(score_slot_, row);
    const uint64_t by_score = order_of.Score(infos.CountOf(row), version, store_.Row(row), score);
    orders.push_back(order_of.Order(by_score, version, infos.KeyOf(row)));
  }
  const int64_t at = count / kStride * 9 / 8 + 64;
  if (at >= static_cast<int64_t>(orders.size())) return LowestKeys::kLast;
  std::nth_element(orders.begin(), orders.begin() + at, orders.end());
  return orders[at];
}

void HostShards::FindInMemory(const LowestOfShares& lowest, int64_t step,
                              const std::unordered_set<int64_t>& kept,
                              const ParallelFor& parallel_for) {
  const Budget& budget = options().budget;
  const OrderOfRow order_of(options(), step);
  TierBelowMemory* const tier = lower_tier();
  const RowInfos& infos = store_.infos();
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
        if (!infos.IsKeys(row)) continue;
        const int64_t key = infos.KeyOf(row), version = infos.VersionOf(row);
        const int64_t share = budget.ShareOf(key);
        if (lowest[share] == nullptr) continue;
        const char* score = score_slot_ < 0 ? nullptr : store_.SlotRow(score_slot_, row);
        const uint64_t by_score =
            order_of.Score(infos.CountOf(row), version, store_.Row(row), score);
        if (by_score > bounds[share].score) continue;
        const EvictionOrder order = order_of.Order(by_score, version, key);
        if (!(order < bounds[share])) continue;
        if (infos.ClockOf(row) >= oldest_batch) continue;  // just trained
        if (born_slot_ >= 0 && order_of.IsSafeNow(store_.SlotRow(born_slot_, row))) continue;
        if (tier != nullptr && tier->IsUsed(row)) continue;
        if (!kept.empty() && kept.count(key) > 0) continue;
        some[share].push_back({order, key, row});
      }
      for (size_t s = 0; s < lowest.size(); ++s) {
        if (lowest[s] != nullptr) lowest[s]->Add(some[s]);
      }
    }
  });
}

Status HostShards::FindBelow(const LowestOfShares& lowest, int64_t step,
                             const std::unordered_set<int64_t>& kept) {
  const Budget& budget = options().budget;
  const OrderOfRow order_of(options(), step);
  const auto bytes_before = [this](int slot) {
    int64_t bytes = 0;
    for (int s = 0; s < slot; ++s) bytes += store_.slot_row_bytes(s);
    return bytes;
  };
  const int64_t score_at = bytes_before(score_slot_), born_at = bytes_before(born_slot_);
  return lower_tier()->ForEachBelow(
      [&](int64_t key, const RecordHead& head, const char* values, const char* slots) {
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

Status HostShards::EraseLowest(const std::vector<EvictionCandidate>& lowest,
                               const std::vector<int64_t>& own_batches,
                               const ParallelFor& parallel_for) {
  // What may find no memory comes first: what follows is done whole.
  std::vector<int64_t>& erased = *changes_.erased();
  erased.reserve(erased.size() + lowest.size());
  std::vector<int64_t> below;
  std::vector<uint64_t> leaving((store_.num_rows() + 63) / 64);  // a bit per row in memory
  std::vector<std::vector<EvictionCandidate>> of_shard(kNumShards);
  for (const EvictionCandidate& candidate : lowest) {
    if (candidate.row == kNoRow) {
      below.push_back(candidate.key);
    } else {
      leaving[candidate.row / 64] |= uint64_t{1} << (candidate.row % 64);
      of_shard[ShardIndex(candidate.order.hash)].push_back(candidate);
    }
  }
  const std::vector<int64_t> rows = RowsOfBits(leaving);
  if (evicted() != nullptr) HandOut(lowest);
  if (lower_tier() != nullptr && !below.empty()) {
    const Status status = lower_tier()->EraseBelow(below);
    if (!status.ok()) return status;
  }
  BeforeWrite(rows.data(), static_cast<int64_t>(rows.size()));
  const int64_t cost = kEraseNanoseconds * (static_cast<int64_t>(lowest.size()) / kNumShards + 1);
  parallel_for(kNumShards, cost, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) EraseInShard(of_shard[s], &shards_[s]);
  });
  for (const int64_t row : rows) store_.infos().SetNoKeys(row);
  store_.Release(rows, own_batches);
  for (const EvictionCandidate& candidate : lowest) erased.push_back(candidate.key);
  changes_.Limit(std::max(kLeastLog, BudgetKeys() / 2));
  budget_->num_evicted += static_cast<int64_t>(lowest.size());
  return {};
}

void HostShards::EraseInShard(const std::vector<EvictionCandidate>& some, Shard* shard) {
  std::lock_guard<std::mutex> lock(shard->mutex);
  for (size_t i = 0; i < some.size(); ++i) {
    if (i + kAhead < some.size()) shard->index.Prefetch(some[i + kAhead].order.hash);
    shard->index.Erase(some[i].row, some[i].order.hash);
  }
  shard->num_rows -= static_cast<int64_t>(some.size());
}

// Those that are in memory.
void HostShards::HandOut(const std::vector<EvictionCandidate>& lowest) {
  MakePlaceForEvicted(static_cast<int64_t>(lowest.size()));
  for (const EvictionCandidate& candidate : lowest) {
    if (candidate.row == kNoRow) continue;
    const RowInfo info = store_.infos().Info(candidate.row);
    evicted()->Add(info.key, info.count, info.version, store_.Row(candidate.row));
  }
}

void HostShards::MakePlaceForEvicted(int64_t num_keys) {
  if (evicted() != nullptr) evicted()->MakePlace(MostHandedOut() - num_keys, num_keys);
}

void HostShards::MakePlaceOnceAnyGoes() {
  if (evicted() != nullptr) evicted()->MakePlaceOnceAnyGoes(MostHandedOut());
}

int64_t HostShards::MostHandedOut() {
  const Budget& budget = options().budget;
  const int64_t most = budget.MostHandedOut(BudgetKeys());
  if (budget.max_bytes > 0) evicted()->SetLimit(most);
  return most;
}

}  // namespace group_embedding
