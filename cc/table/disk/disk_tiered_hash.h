// DiskTieredHash: a DeviceHash with rows on disk below it. Each key has its row in one of the two.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "table/device/device_hash.h"
#include "table/disk/disk_tiered_kernels.h"
#include "table/disk/keys_ahead.h"
#include "table/disk/rows_on_disk.h"

namespace group_embedding {

class DiskTieredHash : public DeviceHash {
 public:
  DiskTieredHash(const TableOptions& options, int64_t device_bytes, const DiskTierOptions& disk,
                 const void* matrix, Status* error);

  Status Slot(const SlotOptions& slot, void** array) override;
  int64_t max_keys(const std::vector<SlotOptions>& slots) const override {
    const int64_t in_memory = MaxRows(slots) - first_row();
    const int64_t most = disk_->MaxRows(in_memory, BytesOfNewSlots(this->slots(), slots));
    return budget_ == nullptr ? most : std::min(most, budget_->max_keys());
  }
  int64_t num_keys() const override;
  int64_t memory_bytes() const override;
  int64_t host_bytes() const override;
  UseCounts use_counts() const override {
    UseCounts counts = DeviceHash::use_counts();
    counts.expired += disk_->expired();
    const int64_t earliest = disk_->EarliestStep();
    const std::lock_guard<std::mutex> lock(mutex_);
    counts.AddAge(last_step(), earliest);
    return counts;
  }
  int64_t disk_bytes() const override { return disk_->store().disk_bytes(); }
  Status Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const override;
  Status ReadAll(KeyedRows* rows) const override;
  Status Insert(const KeyedRowsView& rows, const ParallelFor& parallel_for) override;
  int64_t Erase(const int64_t* keys, int64_t num_keys) override;
  int64_t Evict(const Eviction& eviction, int64_t step, const ParallelFor&) override;
  void Clear() override;
  std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction, int64_t step,
                                         int64_t follower) override;
  Status PrefetchRowsOf(const std::vector<DeviceKeys>& keys, Access access,
                        cudaStream_t stream) override;
  void AbandonCall() override {
    keys_of_shares_.clear();
    makes_places_ = false;
    use_.ForgetBefore();
  }
  // In prefetch_from_disk.cu.
  void PrefetchAhead(const std::vector<DeviceKeys>& keys, cudaStream_t stream) override;
  bool IsPrefetching() const override;
  bool PrefetchSome() override;
  Status SetScores(const int64_t* keys, int64_t num_keys, const float* scores) override;

 private:
  // A budget is of both tiers: disk_budget.cu.
  bool makes_places_on_host() const override { return makes_places_; }
  Status MakePlacesOnHost(int64_t num_keys, std::unordered_set<int64_t>* new_keys) override;
  void CountBelow(std::vector<int64_t>* of_shares) const override;
  Status FindBelow(const LowestOfShares& lowest,
                   const std::unordered_set<int64_t>& kept) const override;
  Status EraseBelow(const std::vector<int64_t>& keys) override;
  // Whether a call may exceed the budget that has at most so many new keys of each share; else they
  // are counted.
  bool MayExceedBudget(const std::vector<int64_t>& new_of_shares, bool all_get_rows);
  // Where all rows are in memory: whether a call with so many keys needs no more than that, and
  // cannot exceed the budget.
  bool FitsInMemory(int64_t num_keys);
  Status MakePlaces(std::unordered_set<int64_t>* new_keys);
  // Rows that were lent become free once no batch holds them.
  void ReleaseLent();
  void AddSlotToDisk(size_t s);
  // The caller of the methods below holds the mutex and uses the table alone, or all but the rows
  // located in a call since `held_since`. These stay in memory.
  //
  // The keys without a row in memory, each once, in the order of the disk. The rows of the others
  // are held as of the call of `ref` from now on, as are those that TakeIn brings.
  std::vector<int64_t> Missing(const JoinedKeys& keys, const DeviceTableRef& ref) const {
    return FindMissing(ref, keys.data(), keys.num_keys(), streams_.own());
  }
  // Brings rows to memory, which then had space for `num_rows`, and if it can, for `num_lent` more.
  Status TakeIn(const FoundOnDisk& found, int64_t num_rows, int64_t num_lent, int64_t held_since);
  int64_t NumFree() const;
  // Moves rows to disk until so many are free, and if it can, `num_lent` more; `num_leaving` of the
  // disk's will leave it.
  Status MakeFree(int64_t num_rows, int64_t num_lent, int64_t num_leaving, int64_t held_since);
  // Cold rows that are not held: up to `most`, and at least `least` if there are so many.
  std::vector<int64_t> RowsToMoveDown(int64_t least, int64_t most, int64_t held_since) const;
  Status MoveDown(const std::vector<int64_t>& rows);
  Status MoveUp(const FoundOnDisk& found, int64_t held_since);
  // As of a call of that number.
  DeviceTableRef RefAt(int64_t clock) const {
    DeviceTableRef ref = Ref();
    ref.clock = clock;
    return ref;
  }
  bool PrefetchNext(KeysAhead* ahead);
  // Brings the rest of the keys ahead, before a call looks for its own keys: that waits for less of
  // the device's work.
  void PrefetchRest();

  std::unique_ptr<RowsOnDisk> disk_;
  // With a budget: how many keys are in both tiers, exactly or at most; empty: not known.
  std::vector<int64_t> keys_of_shares_;
  bool are_counted_ = false;          // exactly
  bool makes_places_ = false;         // in the call that is prepared, which may exceed the budget
  int64_t last_lent_ = 0;             // the last call that may have lent rows; 0: no row is lent
  std::unique_ptr<KeysAhead> ahead_;  // null: there is nothing to bring
};

}  // namespace group_embedding
