// DiskTieredShards: HostShards with rows on disk below them; the table of disk_tiered_table.h.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "table/disk/disk_tiered_table.h"
#include "table/disk/rows_on_disk.h"
#include "table/host/host_shards.h"
#include "table/memory.h"

namespace group_embedding {

class DiskTieredShards : public HostShards, public TierBelowMemory {
 public:
  DiskTieredShards(const TableOptions& options, const DiskTierOptions& disk, const void* matrix,
                   Status* error);

  TierBelowMemory* lower_tier() override { return this; }
  bool has_tier_below() const override { return true; }
  std::unique_lock<std::mutex> StartLocating() override;
  void Use(int64_t row) override { uses()[row].call = call_; }
  Status PrefetchRowsOf(std::vector<int64_t> keys, Access access,
                        const ParallelFor& parallel_for) override;
  int64_t NumKeysBelow() override { return disk_->num_keys(); }
  Status ForEachBelow(const VisitBelow& visit) const override { return disk_->Visit(visit); }
  Status EraseBelow(std::vector<int64_t> keys) override {
    return disk_->EraseEvicted(std::move(keys));
  }
  bool IsUsed(int64_t row) const override {
    const RowUse& use = uses()[row];
    return use.call == call_ || use.num_positions.load(std::memory_order_acquire) > 0;
  }
  Status MakeSpaceFor(int64_t num_rows, const ParallelFor& parallel_for) override {
    return MakeSpace(num_rows, 0, parallel_for);
  }
  void Hold(const int64_t* rows, int64_t num_rows, int64_t batch) override;
  void EndBatch(int64_t batch) override;

  Status Slot(const SlotOptions& slot, void** array) override;
  int64_t num_keys() const override;
  int64_t max_keys(const std::vector<SlotOptions>& slots) const override {
    const int64_t max_rows =
        disk_->MaxRows(store().max_rows(slots), BytesOfNewSlots(this->slots(), slots));
    return options().budget.is_given() ? std::min(max_rows, BudgetKeys(slots)) : max_rows;
  }
  int64_t memory_bytes() const override;
  UseCounts use_counts() const override {
    UseCounts counts = HostShards::use_counts();
    counts.expired += disk_->expired();
    counts.AddAge(last_step(), disk_->EarliestStep());
    return counts;
  }
  int64_t disk_bytes() const override { return disk_->store().disk_bytes(); }
  Status Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const override;
  Status ReadAll(KeyedRows* rows) const override;
  Status Insert(const KeyedRowsView& rows, const ParallelFor& parallel_for) override;
  int64_t Erase(const int64_t* keys, int64_t num_keys) override;
  int64_t Evict(const Eviction& eviction, int64_t step, const ParallelFor& parallel_for) override;
  void Clear() override;
  std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction, int64_t step,
                                         int64_t follower) override;

 private:
  // What is known of the use of a row; all zeros at first.
  struct RowUse {
    int64_t call;                        // the call that located it last
    std::atomic<int32_t> num_positions;  // of batches in flight, that hold it
  };

  RowUse* uses() const { return reinterpret_cast<RowUse*>(uses_->data()); }

  // Moves the row of each found key into the row of that place in `rows`, which were taken.
  Status MoveUp(const FoundOnDisk& found, const int64_t* rows);
  // The key's row in memory is free; its content is on disk.
  void LeaveMemory(int64_t key, int64_t row);
  // Moves rows of keys, which no batch uses, to disk and frees them.
  Status MoveDown(const int64_t* rows, int64_t num_rows);
  // Moves rows to disk until `num_rows` are free; `num_leaving` of the disk's will leave it.
  Status MakeSpace(int64_t num_rows, int64_t num_leaving, const ParallelFor& parallel_for);
  // Up to `count` cold rows that neither a batch in flight nor this call uses.
  std::vector<int64_t> RowsToMoveDown(int64_t count);

  const CacheStrategy cache_strategy_;
  std::unique_ptr<Memory> uses_;  // RowUse [num_rows]
  std::unique_ptr<RowsOnDisk> disk_;
  mutable std::mutex locating_;
  int64_t call_ = 0;  // that locates keys
  std::mutex batches_mutex_;
  std::unordered_map<int64_t, std::vector<int64_t>> rows_of_batch_;
};

}  // namespace group_embedding
