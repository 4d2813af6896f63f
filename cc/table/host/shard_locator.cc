// Locating in one table in host memory: its shards as tasks (shard_task.h).
#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "table/host/budget_locator.h"
#include "table/host/shard_task.h"

namespace group_embedding {
namespace {

using namespace locate_rows;

// Steps: sort the keys by shard; with a Bloom filter that trains, count; read or train. A lower
// tier is locked from the second step on.
class ShardLocator : public RowLocator {
 public:
  ShardLocator(HostShards* table, std::vector<KeysToLocate> requests, Access access, int64_t step)
      : requests_(std::move(requests)), access_(access), step_(step), tier_(table->lower_tier()) {
    keys_.Begin(table, requests_);
    counts_in_bloom_ =
        access == Access::kTrain && table->options().admission.kind == Admission::Kind::kBloom;
    num_keys_ = keys_.NumKeys();
  }

  int num_steps() const override { return counts_in_bloom_ ? 3 : 2; }
  int64_t num_tasks(int step) const override {
    return step == 0 ? static_cast<int64_t>(keys_.chunks.size()) : kNumShards;
  }
  int64_t cost(int step) const override {
    return step == 0 ? 4 * num_keys_ : 20 * num_keys_ + 100 * kNumShards;
  }

  Status BeginStep(int step, const ParallelFor& parallel_for) override {
    if (step != 1) return {};
    if (tier_ != nullptr) {
      lock_ = tier_->StartLocating();
      return PrefetchRows(keys_, tier_, access_, parallel_for);
    }
    if (access_ == Access::kTrain) MakeSpace(parallel_for);
    return {};
  }

  Status RunTask(int step, int64_t task) override {
    if (step == 0) {
      keys_.chunks[task].keys.Sort();
      return {};
    }
    ShardTask shard(keys_, static_cast<int>(task), step_);
    if (step == 1) shard.SampleIfChosen();
    if (access_ == Access::kTrain && step == num_steps() - 1) return shard.Train();
    access_ == Access::kTrain ? shard.CountInBloom() : shard.Read();
    return {};
  }

  void End() override {
    if (access_ == Access::kTrain) keys_.table->store().EndCall();
    if (tier_ == nullptr) return;
    for (const KeysToLocate& r : requests_) tier_->Hold(r.rows, r.num_keys, r.batch);
  }

 private:
  // Frees the rows that an eviction leaves, if keys may need them.
  void MakeSpace(const ParallelFor& parallel_for) {
    const auto snapshot = keys_.table->snapshot();
    if (snapshot == nullptr || !snapshot->evicts()) return;
    if (keys_.table->store().NumFree() < num_keys_) keys_.table->CompleteEviction(parallel_for);
  }

  const std::vector<KeysToLocate> requests_;
  const Access access_;
  const int64_t step_;
  TierBelowMemory* const tier_;  // null: all rows are in memory
  TableKeys keys_;
  bool counts_in_bloom_;
  int64_t num_keys_ = 0;
  std::unique_lock<std::mutex> lock_;  // of the tier, until the end
};

}  // namespace

std::unique_ptr<RowLocator> HostShards::Locate(std::vector<KeysToLocate> requests, Access access,
                                               int64_t step) {
  if (access == Access::kTrain) CountStep(step);
  if (access == Access::kTrain && options().budget.is_given()) {
    return MakeBudgetLocator(this, std::move(requests), step);
  }
  return std::make_unique<ShardLocator>(this, std::move(requests), access, step);
}

}  // namespace group_embedding
