// ServedTables: the tables of one served model, which belong to the process. Each of the model's
// two sessions sees them through a view of its own: a table with the overlay of the session's
// version.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serving/device/fetched_rows.h"
#include "serving/device/resident_rows.h"
#include "serving/device/row_cache.h"
#include "serving/lower/deadline.h"
#include "serving/session/two_slots.h"
#include "serving/table/served_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tf/serving/ops/first_failure.h"

namespace group_embedding {

// For a call of the tier below memory while a model is opened: a cluster may put another node in
// the place of one that is gone meanwhile.
constexpr std::chrono::seconds kPatienceToOpen(30);

// What the tier below memory has answered: an error is UNAVAILABLE, or DEADLINE_EXCEEDED.
absl::Status FromTier(const Status& status, const Deadline& deadline);

// What a lookup reads. A slot's overlay changes only while no request is in the slot.
struct TableView {
  const ServedTable* table = nullptr;
  const Overlay* overlay = nullptr;
};

#if GROUP_EMBEDDING_CUDA
// What lookups of one model on a GPU share.
struct ServedDevice {
  int gpu;
  CacheTurns turns;
};
#else
struct ServedDevice {};
class ResidentRows;
class RowCache;
#endif

class ServedTables {
 public:
  struct Entry {
    std::string table_name;  // the trainer's
    std::unique_ptr<ServedTable> table;
    std::array<std::unique_ptr<Overlay>, kNumSlots> overlays;
    // On the GPU that serves the table: all rows, or copies of some.
    const ResidentRows* resident = nullptr;
    const RowCache* cache = nullptr;
  };

  // `quantize`: the format of rows; null: as trained. `lower`: where keyed tables have their rows,
  // with a cache in memory; null: all rows are in memory.
  explicit ServedTables(std::optional<RowFormat> quantize, std::shared_ptr<LowerTier> lower)
      : quantize_(quantize), lower_(std::move(lower)) {}

  // The number by which ops find it; valid until Unregister.
  static int64_t Register(std::shared_ptr<ServedTables> tables);
  static void Unregister(int64_t number);
  static absl::Status Find(int64_t number, std::shared_ptr<ServedTables>* tables);

  // The entry of a resource's name, made where there is none. It never moves.
  Entry* Get(const std::string& resource, const std::string& table_name);
  // Makes the table of an entry, unless it has one.
  absl::Status Make(Entry* entry, ServedTableOptions options, const void* matrix);
  // Gives a table that has no rows yet the format in which its rows are in files.
  absl::Status MakeAgain(Entry* entry, RowFormat format);

  // With a tier below, a number of what a table's files have, by their manifest.
  uint64_t ContentOf(const std::string& table, const std::string& manifest) const;
  // Gives a table its rows below memory, if they are there and complete.
  absl::Status AttachComplete(Entry* entry, const LowerRowsId& id, bool* is_there);
  // Has a table fill its rows below memory, if there is a tier.
  void AttachEmpty(ServedTable* table, const LowerRowsId& id);
  // Once tables have their rows: divides the memory for the caches of tiered tables.
  void StartCaches(const TierOptions& tiers);

  // Before the first table is made: this GPU looks rows up.
  absl::Status UseDevice(int gpu);
  ServedDevice* device() const { return device_.get(); }
  // Once tables have their rows: gives each copies of rows on the GPU. bytes: for all of them; 0:
  // half of what the GPU has left. The smallest tables get all their rows there, as long as each
  // finds an equal share of the bytes; the others get caches. Tables with a tier below memory get
  // caches, too.
  absl::Status MakeCopies(int64_t bytes);

  FirstFailure restore_failure;  // of an op that gives a table its rows

  // In the order of resources' names.
  std::map<std::string, Entry>& entries() { return entries_; }

 private:
  // Bytes that are left for the caches of other tables.
  int64_t MakeResident(int64_t bytes);

  const std::optional<RowFormat> quantize_;
  const std::shared_ptr<LowerTier> lower_;
  LargePageArena small_tables_;
  std::mutex mutex_;  // of entries_, while sessions are made
  std::map<std::string, Entry> entries_;
  std::unique_ptr<ServedDevice> device_;
  // The threads of tiered tables end before the tables do.
  TierThreads threads_;
  std::unique_ptr<PeriodicJob> expiry_;
};

// A session's view of one table, as a resource.
class ServedTableResource : public tensorflow::ResourceBase {
 public:
  ServedTableResource(std::shared_ptr<ServedTables> tables, ServedTables::Entry* entry, int slot)
      : tables_(std::move(tables)), entry_(entry), slot_(slot) {}

  std::string DebugString() const override { return "served table '" + name() + "'"; }
  const std::string& name() const { return entry_->table_name; }
  ServedTables* tables() const { return tables_.get(); }
  ServedTables::Entry* entry() const { return entry_; }
  TableView view() const { return {entry_->table.get(), entry_->overlays[slot_].get()}; }

  absl::Status CheckInitialized() const {
    if (entry_->table != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError("table '" + name() +
                                         "': expected rows, but the SavedModel restores none");
  }

 private:
  const std::shared_ptr<ServedTables> tables_;
  ServedTables::Entry* const entry_;
  const int slot_;
};

using ServedTablePtr = tensorflow::core::RefCountPtr<ServedTableResource>;

// Brings rows that are not in memory, until the deadline of the request that the thread computes.
// keys: of the batch. positions: of the keys to bring. rows: written in these positions.
absl::Status FetchRows(ServedTable* table, const int64_t* keys, std::vector<int64_t> positions,
                       int64_t* rows);

}  // namespace group_embedding
