// Counts of keys without a row, of which a table with a budget keeps no more than of keys.
#include <mutex>
#include <utility>
#include <vector>

#include "table/host/host_shards.h"

namespace group_embedding {

namespace {

constexpr int64_t kShardNanoseconds = 100000;  // a shard, about

}  // namespace

void HostShards::CountCounted() {
  const Budget& budget = options().budget;
  BudgetUse& use = *budget_;
  use.counted_of_share.assign(budget.shares_of_rank(), 0);
  use.num_counted_then = use.num_counted;
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    if (use.counted_of_share.size() == 1) {
      use.counted_of_share[0] += shard.num_counted();
      continue;
    }
    shard.ForEachCount([&](int64_t key, int64_t) { ++use.counted_of_share[budget.ShareOf(key)]; });
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
    parallel_for(kNumShards, kShardNanoseconds, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        Shard& shard = shards_[s];
        std::lock_guard<std::mutex> lock(shard.mutex);
        std::vector<std::pair<int64_t, int64_t>> counts;
        shard.ForEachCount([&](int64_t key, int64_t count) {
          if (is_over[budget.ShareOf(key)]) counts.emplace_back(key, count);
        });
        for (const auto& [key, count] : counts) {
          if (count == 1) {
            shard.ForgetCount(key, HashOf(key));
          } else {
            shard.SetCount(key, HashOf(key), count / 2);
          }
        }
      }
    });
  }
}

}  // namespace group_embedding
