#include "table/disk/disk_tiered_table.h"

#include <algorithm>

#include "table/check_table.h"
#include "table/disk/disk_tiered_shards.h"
#include "table/disk/insert_in_tiers.h"

namespace group_embedding {

DiskTieredShards::DiskTieredShards(const TableOptions& options, const DiskTierOptions& disk,
                                   const void* matrix, Status* error)
    : HostShards(options, matrix, error), cache_strategy_(disk.cache_strategy) {
  if (!error->ok()) return;
  const int64_t bytes = (first_row() + store().max_rows()) * static_cast<int64_t>(sizeof(RowUse));
  uses_ = ReserveHostMemory(bytes);
  *error = uses_->Grow(bytes);
  if (!error->ok()) *error = error->In("table '" + options.name + "': ");
  if (!error->ok()) return;
  disk_ = std::make_unique<RowsOnDisk>(options, disk, error);
  disk_->HandOutTo(evicted());
}

Status DiskTieredShards::Slot(const SlotOptions& slot, void** array) {
  const size_t num_slots = slots().size();
  Status status = HostShards::Slot(slot, array);
  if (slots().size() == num_slots) return status;
  // It starts as that of the first row, which no key has.
  const char* start = store().SlotRow(num_slots, 0);
  disk_->AddSlot({start, start + store().slot_row_bytes(num_slots)}, slot.name == kTimeSlot);
  return {};
}

int64_t DiskTieredShards::num_keys() const {
  const auto one_moment = LockBudget();
  std::lock_guard<std::mutex> lock(locating_);
  return NumKeysInMemory() + disk_->num_keys();
}

int64_t DiskTieredShards::memory_bytes() const {
  return HostShards::memory_bytes() + rows().num_rows * static_cast<int64_t>(sizeof(RowUse)) +
         disk_->store().memory_bytes();
}

Status DiskTieredShards::Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const {
  std::lock_guard<std::mutex> lock(locating_);
  Status status = HostShards::Describe(keys, num_keys, infos);
  return status.ok() ? disk_->Describe(keys, num_keys, /*tier=*/1, infos) : status;
}

Status DiskTieredShards::Insert(const KeyedRowsView& given, const ParallelFor&) {
  Status wrong = CheckCounts(options(), given);
  if (!wrong.ok()) return wrong;
  HostShards::CompleteEviction();
  disk_->CompleteEviction();
  KeyedRows kept;
  bool is_changed;
  const Status fits = FitIntoBudget(given, &kept, &is_changed);
  if (!fits.ok()) return fits;
  const TableBatch batch(this);  // as HostShards::Insert
  UpperTier memory;
  memory.find = [this](const std::vector<int64_t>& keys, int64_t* rows) {
    Find(keys.data(), static_cast<int64_t>(keys.size()), rows);
  };
  memory.space = [this] { return UpperTier::Space{store().NumFree(), store().clock()}; };
  memory.insert = [this](const KeyedRows& rows, const std::vector<size_t>& chosen) {
    const KeyedRowsView view = rows;
    Status status;
    for (size_t c = 0; c < chosen.size() && status.ok(); ++c) {
      status = InsertOne(view, static_cast<int64_t>(chosen[c]));
    }
    return status;
  };
  memory.drop_counts = [this](const std::vector<int64_t>& keys) {
    HostShards::Erase(keys.data(), static_cast<int64_t>(keys.size()));
  };
  const KeyedRowsView rows = is_changed ? KeyedRowsView(kept) : given;
  return InsertInTiers(*this, rows, RowsOnDisk::kAtOnce, memory, disk_.get());
}

int64_t DiskTieredShards::Erase(const int64_t* keys, int64_t num_keys) {
  const int64_t num_erased = HostShards::Erase(keys, num_keys);
  return num_erased + disk_->EraseSome({keys, keys + num_keys}, changes_.erased());
}

Status DiskTieredShards::ReadAll(KeyedRows* rows) const {
  const Status status = HostShards::ReadAll(rows);
  return status.ok() ? disk_->ReadAll(rows) : status;
}

int64_t DiskTieredShards::Evict(const Eviction& given, int64_t step,
                                const ParallelFor& parallel_for) {
  const Eviction eviction = AsOfNow(given);
  return HostShards::Evict(eviction, step, parallel_for) +
         disk_->Evict(eviction, step, changes_.erased());
}

void DiskTieredShards::Clear() {
  HostShards::Clear();
  disk_->Clear(changes_.erased());
}

std::unique_ptr<Snapshot> DiskTieredShards::TakeSnapshot(bool changes_only, const Eviction& given,
                                                         int64_t step, int64_t follower) {
  const Eviction eviction = AsOfNow(given);
  const int64_t since = changes_only ? changes_.MarkOf(follower).clock : 0;
  auto memory = HostShards::TakeSnapshot(changes_only, eviction, step, follower);
  return disk_->TakeSnapshot(std::move(memory), changes_only, since,
                             {eviction, step, store().clock()}, &locating_, &changes_);
}

std::unique_ptr<EmbeddingTable> MakeDiskTieredTable(const TableOptions& options,
                                                    const DiskTierOptions& disk, const void* matrix,
                                                    Status* error) {
  *error = CheckOptions(options);
  if (error->ok()) *error = CheckTierBytes(options, disk.max_bytes);
  if (!error->ok()) return nullptr;
  if (options.max_bytes <= 0) {
    *error = "table '" + options.name +
             "': expected the size of its memory, as it has a disk "
             "tier, got " +
             std::to_string(options.max_bytes) +
             " bytes; give tier_bytes=[bytes in memory], or storage_size of a StorageOption";
    return nullptr;
  }
  auto table = std::make_unique<DiskTieredShards>(options, disk, matrix, error);
  if (error->ok()) *error = table->MakeOwnSlots();
  if (!error->ok()) return nullptr;
  return table;
}

}  // namespace group_embedding
