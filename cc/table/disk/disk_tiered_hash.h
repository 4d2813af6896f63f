// DiskTieredHash: a DeviceHash with rows on disk below it. Each key has its row in one of the two.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "table/device/device_hash.h"
#include "table/disk/rows_on_disk.h"

namespace group_embedding {

class DiskTieredHash : public DeviceHash {
 public:
  DiskTieredHash(const TableOptions& options, int64_t device_bytes, const DiskTierOptions& disk,
                 const void* matrix, Status* error);

  Status Slot(const SlotOptions& slot, void** array) override;
  int64_t max_keys(const std::vector<SlotOptions>& slots) const override {
    return disk_->MaxRows(DeviceHash::max_keys(slots), BytesOfNewSlots(this->slots(), slots));
  }
  int64_t num_keys() const override;
  int64_t memory_bytes() const override;
  int64_t disk_bytes() const override { return disk_->store().disk_bytes(); }
  Status Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const override;
  Status ReadAll(KeyedRows* rows) const override;
  Status Insert(const KeyedRowsView& rows, const ParallelFor& parallel_for) override;
  int64_t Erase(const int64_t* keys, int64_t num_keys) override;
  int64_t Evict(const Eviction& eviction, int64_t step, const ParallelFor&) override;
  void Clear() override;
  std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction, int64_t step,
                                         int64_t follower) override;
  Status BringIn(const std::vector<DeviceKeys>& keys, Access access, cudaStream_t stream) override;

 private:
  // The caller of the methods below holds the mutex and uses the table alone.
  // The keys without a row in memory, each once, in the order of the disk. Marks the rows of the
  // other keys as used by this call.
  std::vector<int64_t> Missing(const std::vector<DeviceKeys>& keys) const;
  int64_t NumFree() const;
  // Moves rows to disk until so many are free; `num_leaving` of the disk's will leave it.
  Status MakeFree(int64_t num_rows, int64_t num_leaving);
  // Cold rows that neither this call nor a call since the oldest batch in flight began has located:
  // up to `most`, and at least `least` if there are so many.
  std::vector<int64_t> RowsToMoveDown(int64_t least, int64_t most) const;
  Status MoveDown(const std::vector<int64_t>& rows);
  Status MoveUp(const FoundOnDisk& found);

  std::unique_ptr<RowsOnDisk> disk_;
};

}  // namespace group_embedding
