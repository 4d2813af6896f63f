#include "table/host/budget_locator.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "table/host/shard_task.h"

namespace group_embedding {
namespace {

using namespace locate_rows;

// Steps: sort the keys by shard; with a Bloom filter, count; train the keys that have a row and
// find the new ones; give these rows. Before the last step, alone, the table makes places.
class BudgetLocator : public RowLocator {
 public:
  BudgetLocator(HostShards* table, std::vector<KeysToLocate> requests, int64_t step)
      : table_(*table),
        requests_(std::move(requests)),
        step_(step),
        tier_(table->lower_tier()),
        first_step_(table->options().admission.kind == Admission::Kind::kBloom ? 2 : 1),
        batch_(table) {
    keys_.Begin(table, requests_);
    num_keys_ = keys_.NumKeys();
    own_batches_.push_back(batch_.number());
    for (const KeysToLocate& request : requests_) own_batches_.push_back(request.batch);
  }

  int num_steps() const override { return first_step_ + 2; }
  int64_t num_tasks(int step) const override {
    return step == 0 ? static_cast<int64_t>(keys_.chunks.size()) : kNumShards;
  }
  int64_t cost(int step) const override {
    return step == 0 ? 4 * num_keys_ : 20 * num_keys_ + 100 * kNumShards;
  }

  Status BeginStep(int step, const ParallelFor& parallel_for) override {
    if (step == 1) return BeginTraining(parallel_for);
    return step == first_step_ + 1 ? MakePlaces(parallel_for) : Status();
  }

  Status RunTask(int step, int64_t task) override {
    if (step == 0) {
      keys_.chunks[task].keys.Sort();
      return {};
    }
    ShardTask shard(keys_, static_cast<int>(task), step_);
    if (step == 1) shard.SampleIfChosen();
    if (step == first_step_ + 1) {
      return shard.StartNew(without_[task], num_places_[task], without_place_, &num_to_lend_);
    }
    step < first_step_ ? shard.CountInBloom() : shard.FindNew(&without_[task], &new_keys_[task]);
    return {};
  }

  void End() override {
    table_.store().EndCall();
    if (tier_ == nullptr) return;
    for (const KeysToLocate& r : requests_) tier_->Hold(r.rows, r.num_keys, r.batch);
  }

 private:
  // Locks the table against others who train. Afterwards all keys that have a row have it in
  // memory, and no eviction of a snapshot is left to do.
  Status BeginTraining(const ParallelFor& parallel_for) {
    training_ = std::unique_lock<std::mutex>(table_.budget()->training);
    if (tier_ != nullptr) lock_ = tier_->StartLocating();
    table_.CompleteEviction(parallel_for);
    table_.HalveCounts(parallel_for);
    if (tier_ == nullptr) return {};
    return PrefetchRows(keys_, tier_, Access::kRead, parallel_for);
  }

  Status MakePlaces(const ParallelFor& parallel_for) {
    std::vector<int64_t> all;
    for (const auto& some : new_keys_) all.insert(all.end(), some.begin(), some.end());
    Status status = table_.MakePlaces(all, step_, own_batches_, parallel_for, &without_place_);
    int64_t num_places = 0;
    for (int s = 0; s < kNumShards; ++s) {
      num_places_[s] = std::count_if(new_keys_[s].begin(), new_keys_[s].end(), [&](int64_t key) {
        return without_place_.empty() || without_place_.count(key) == 0;
      });
      num_places += num_places_[s];
    }
    if (status.ok() && tier_ != nullptr) status = tier_->MakeSpaceFor(num_places, parallel_for);
    if (!without_place_.empty()) num_to_lend_ = table_.store().NumFree() - num_places;
    return status;
  }

  HostShards& table_;
  const std::vector<KeysToLocate> requests_;
  const int64_t step_;
  TierBelowMemory* const tier_;  // null: all rows are in memory
  const int first_step_;         // that finds keys
  const TableBatch batch_;       // keys that it trained do not go
  std::vector<int64_t> own_batches_;
  TableKeys keys_;
  int64_t num_keys_ = 0;
  std::vector<Occurrence> without_[kNumShards];
  std::vector<int64_t> new_keys_[kNumShards];
  int64_t num_places_[kNumShards] = {};  // for new keys
  KeySet without_place_;
  std::atomic<int64_t> num_to_lend_{0};           // rows, to keys without a place
  std::unique_lock<std::mutex> training_, lock_;  // of the budget and the tier, until the end
};

}  // namespace

std::unique_ptr<RowLocator> MakeBudgetLocator(HostShards* table, std::vector<KeysToLocate> requests,
                                              int64_t step) {
  return std::make_unique<BudgetLocator>(table, std::move(requests), step);
}

}  // namespace group_embedding
