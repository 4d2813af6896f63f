// DeviceHash: a keyed table in GPU memory: an index (device_index.cuh) over rows in growing
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "table/device/device_budget.h"
#include "table/device/device_budget_bytes.h"
#include "table/device/device_memory.h"
#include "table/device/device_snapshot.h"
#include "table/device/device_streams.h"
#include "table/device/device_table.h"
#include "table/device/device_table_ref.cuh"
#include "table/device/device_use.h"
#include "table/device/growing_index.h"
#include "table/device/make_places.h"
#include "table/device/prefetch_rows.h"
#include "table/device/row_moves.h"
#include "table/lowest_keys.h"

namespace group_embedding {

struct DeviceKeys {
  const int64_t* keys;  // [num_keys]
  int64_t num_keys;
};

class DeviceHash : public EmbeddingTable {
 public:
  DeviceHash(const TableOptions& options, const DeviceTierOptions& tiers, const void* matrix,
             Status* error);
  ~DeviceHash() override;

  const TableOptions& options() const override { return options_; }
  Table rows() const override;
  void ReadInitialRows(void* rows) const override;
  void WriteInitialRows(const void* rows) override;
  DeviceHash* device() override { return this; }
  int64_t first_row() const override { return options_.initial.matrix_rows + 1; }
  RowKeys row_keys() const override {
    static_assert(offsetof(RowInfo, key) == 0);
    return {reinterpret_cast<const char*>(ref_.infos), sizeof(RowInfo)};
  }
  Status Slot(const SlotOptions& slot, void** array) override;
  Status CheckSlots(const std::vector<SlotOptions>& more) const override;
  int64_t max_keys(const std::vector<SlotOptions>& slots) const override {
    const int64_t most = MaxRows(slots) - first_row();
    return budget_ == nullptr ? most : std::min(most, budget_->max_keys());
  }
  const std::vector<SlotOptions>& slots() const override { return slots_; }
  int64_t num_keys() const override;
  int64_t memory_bytes() const override;
  int64_t host_bytes() const override;
  float load_factor() const override;
  void Find(const int64_t* keys, int64_t num_keys, int64_t* rows) const override;
  RowInfo Info(int64_t row) const override;
  Status Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const override;
  Status ReadAll(KeyedRows* rows) const override;
  Status Insert(const KeyedRowsView& rows, const ParallelFor& parallel_for) override;
  int64_t Erase(const int64_t* keys, int64_t num_keys) override;
  int64_t Evict(const Eviction& eviction, int64_t step, const ParallelFor&) override;
  void Clear() override;
  void SetAdmissionState(const AdmissionState& state) override;
  Status SetScores(const int64_t* keys, int64_t num_keys, const float* scores) override;
  void TakeEvicted(KeyedRows* rows) override;
  void DropEvicted() override;
  void CountWithoutPlace(int64_t num_keys) override;
  BudgetCounts budget_counts() const override;
  UseCounts use_counts() const override;
  ChangeLog* changes() override;
  ChangeMark Now() const override;
  std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction, int64_t step,
                                         int64_t follower) override;
  void BeforeWrite(const int64_t* rows, int64_t num_rows) override;
  // As device_table.h says.
  Status BeforeWriteCuda(const int64_t* rows, int64_t num_rows, cudaStream_t stream);
  int64_t BeginBatch() override;
  void EndBatch(int64_t batch) override;
  int64_t num_rows() const;
  const RowInfo* infos() const { return ref_.infos; }
  Status Reserve(int64_t num_keys);

  // LocateRowsCuda holds the mutex of each table of a call. It calls Prepare, launches with Ref(),
  // and after training CheckFull; then other streams go on. CheckFull waits for the device only if
  // Prepare found too little memory.
  std::mutex& mutex() const { return mutex_; }
  // Before that, for a table that has rows on disk: brings those of the keys into memory, and makes
  // sure that there is space for new ones. Holding its mutex.
  virtual Status PrefetchRowsOf(const std::vector<DeviceKeys>&, Access, cudaStream_t) { return {}; }
  // The call for which that was done has failed.
  virtual void AbandonCall() {}
  // Rows on disk of the next batch, ahead of it: PrefetchAhead takes its keys; PrefetchSome brings
  // some rows while `stream` goes on, and returns whether there may be more; IsPrefetching: whether
  // there is something to do for it. Holding the mutex, but for AwaitMark, after which PrefetchSome
  // need not wait for the device.
  virtual void PrefetchAhead(const std::vector<DeviceKeys>&, cudaStream_t) {}
  virtual bool IsPrefetching() const { return false; }
  virtual bool PrefetchSome() { return false; }
  void AwaitMark() const { streams_.AwaitMark(); }
  // admits_all: all keys get rows. own_batches: of the call.
  Status Prepare(int64_t num_keys, Access access, bool admits_all, int64_t step,
                 cudaStream_t stream, const std::vector<int64_t>& own_batches);
  DeviceTableRef Ref() const;
  // Counts the prepared call, which has so many keys. Its kernels count where `ref` says then.
  void CountCall(int64_t num_keys, DeviceTableRef* ref) { use_.BeginCall(num_keys, ref); }
  // What the prepared call needs to make places, and to halve counts; nothing: it cannot exceed the
  // budget.
  const std::optional<PlacesArgs>& places() const { return places_; }
  bool has_tier_below() const { return tiers_.has_disk; }
  // Whether new keys claim slots of the call, so that the index has those alone that get a row or
  // are counted.
  bool claims_of_call() const {
    return budget_ != nullptr && (HasBudgetOfBytes() || has_tier_below());
  }
  // In the middle of a call with `num_keys` keys that may exceed the budget of memory and a tier
  // below: evicts, and removes those new keys that find no place.
  virtual bool makes_places_on_host() const { return false; }
  virtual Status MakePlacesOnHost(int64_t /*num_keys*/, std::unordered_set<int64_t>* /*new_keys*/) {
    return {};
  }
  Status CheckFull(cudaStream_t stream);
  RowCopies* snapshot() const { return snapshot_.get(); }

  // What PrefetchRowsCuda does with a table, holding its mutex: if rows can be brought, memory for
  // `num_keys` keys whose rows are then marked on `stream`; and around the exchange on another
  // stream, BeginPrefetching and EndPrefetching.
  bool CanPrefetchRows() const;
  Status MakePrefetchSpace(int64_t num_keys, cudaStream_t stream);
  PrefetchRef BeginPrefetching(cudaStream_t stream);
  void EndPrefetching(cudaStream_t stream) { streams_.EndAlone(stream); }

  // For the snapshot that is being read.
  void ForgetSnapshot();
  Status ReadSnapshot(RowCopies* snapshot, int64_t begin, int64_t end, KeyedRows* rows);

 protected:
  struct Retired {
    int64_t row, clock;
  };

  // What runs alone, on the table's own stream; done when it goes.
  class Alone {
   public:
    explicit Alone(const DeviceHash& table) : lock_(table.mutex_), table_(table) {
      table_.streams_.BeginAlone(table_.streams_.own());
    }
    Alone(const DeviceHash& table, std::adopt_lock_t) : table_(table) {
      table_.streams_.BeginAlone(table_.streams_.own());
    }
    ~Alone() {
      cudaStreamSynchronize(table_.streams_.own());
      table_.streams_.EndAlone(table_.streams_.own());
    }

   private:
    std::unique_lock<std::mutex> lock_;
    const DeviceHash& table_;
  };

  // The index's, before it grows by half.
  static constexpr float kMaxLoad = static_cast<float>(DeviceBudgetBytes::kIndexLoad);

  // What follows holds the mutex.
  Status Begin(const void* matrix);
  int64_t RowBytes() const { return options_.dim * SizeOf(options_.dtype); }
  int64_t SlotBytes(size_t s) const { return slots_[s].width * SizeOf(slots_[s].dtype); }
  int64_t BytesPerRow() const;
  // With those slots too.
  int64_t MaxRows(const std::vector<SlotOptions>& more = {}) const;
  // Where there are two memories, device_rows rows are in device memory.
  std::unique_ptr<DeviceMemory> ReserveValues(int64_t row_bytes, int64_t device_rows) const;
  void LimitDeviceRows(int64_t device_rows);
  std::string Named(const std::string& what) const {
    return "table '" + options_.name + "'" + what;
  }
  std::string FullError(const std::string& why) const;
  Status NoMemory(const Status& status) const;

  void DescribeAlone(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const;
  TableState State() const;                // waits for everything
  void SetState(const TableState& state);  // nothing may be under way
  // Without waiting: a state some time ago, and how many keys were enqueued to train since.
  TableState Reported(int64_t* enqueued_since) const;

  Status MakeSpace(int64_t num_keys, cudaStream_t stream);
  Status PreparePlaces(int64_t num_keys, bool admits_all);
  void ReadEvicted() const;
  Status GrowRows(int64_t num_rows);
  Status GrowArrays(int64_t num_rows);
  Status MarkUnused(int64_t begin, int64_t end) const;
  Status GrowCandidates(int64_t num_candidates);
  Status MakeIndexSpace(const TableState& state, int64_t enqueued, bool is_rebuilt,
                        int64_t num_keys, cudaStream_t stream);
  Status GrowIndex(const GrowingIndex::Work& work, cudaStream_t stream);
  void RebuildIndex(cudaStream_t stream);
  void ReleaseRetired();
  void MoveRows();
  int64_t OldestBatchLocked() const;
  ChangeMark NowLocked() const;

  // Its budget: device_hash_budget.cu.
  bool HasBudgetOfBytes() const { return options_.budget.max_bytes > 0; }
  // The slots that the table itself makes.
  std::vector<SlotOptions> OwnSlots() const;
  DeviceBudgetBytes BytesOfKeys(const std::vector<SlotOptions>& more_slots) const;
  int64_t BudgetKeys(const std::vector<SlotOptions>& more_slots = {}) const;
  // An error: a budget of bytes has not a key for each share, with those slots too.
  Status CheckBudgetKeys(const std::vector<SlotOptions>& more_slots) const;
  // The error of more slots, with which the budget has space for so many keys.
  Status NeedsLargerBudget(int64_t max_keys) const;
  // With a budget of bytes: fewer keys, with those slots too. An error: there is no space for them.
  Status FitToBytes(const std::vector<SlotOptions>& more_slots);
  // The most keys that are counted without a row, if so many were enqueued for training since
  // `state`: with a budget as many as it has keys, and those of a call, as they are halved before
  // the next one.
  int64_t MostCounted(const TableState& state, int64_t num_keys) const;
  Status MakeOwnSlots();
  // The slot that keys are compared by; -1: none.
  int ScoreSlot() const {
    return options_.budget.first == EvictFirst::kEarliest ? time_slot_ : score_slot_;
  }
  void MakePlaceForEvicted(int64_t num_keys);
  void HandOut(const int64_t* device_rows, int64_t num_rows);
  // Drops rows that are given, and evicts keys, until both together keep the budget.
  Status FitIntoBudget(KeyedRows* given);
  std::vector<int64_t> KeysOfShares() const;
  int64_t NumKeysOfTiers() const;
  // Keys that stay: those of batches in flight, those trained by call `since` or later, and `keys`.
  struct Kept {
    int64_t since;
    std::unordered_set<int64_t> keys;
  };
  // Evicts the lowest, so many of each share, of the keys that do not stay and are not safe, and of
  // `more`, which the table does not have: these are appended to `dropped` instead.
  Status EvictLowest(const std::vector<int64_t>& num_to_go, const Kept& kept,
                     const std::vector<EvictionCandidate>& more,
                     std::unordered_set<int64_t>* dropped);
  // Adds those in memory that may go, some rows at a time.
  void AddCandidates(const Kept& kept, const LowestOfShares& lowest) const;
  void AddCandidatesOf(int64_t begin, int64_t num_rows, const Kept& kept,
                       const LowestOfShares& lowest) const;
  // Where a tier below memory has rows, the budget is of both. Rows of keys that went become free
  // as those that are erased.
  virtual void CountBelow(std::vector<int64_t>* /*of_shares*/) const {}
  virtual Status FindBelow(const LowestOfShares& /*lowest*/,
                           const std::unordered_set<int64_t>& /*kept*/) const {
    return {};
  }
  virtual Status EraseBelow(const std::vector<int64_t>& /*keys*/) { return {}; }
  // What an array of rows, which may be in two memories, has for some of them.
  std::vector<char> OfRows(const void* array, int64_t bytes,
                           const std::vector<int64_t>& rows) const;
  std::vector<char> OfSlot(int slot, const std::vector<int64_t>& rows) const;  // -1: nothing

  Status InsertSome(const KeyedRows& rows, const std::vector<size_t>& chosen);
  // Where rows that are given go, and memory for them on the way, as wide as the widest array.
  struct GivenRows {
    const int64_t* rows;  // in device memory
    char* values;         // in device memory
    char* host_values;
  };
  int64_t WidestBytes() const;
  void WriteGiven(const KeyedRows& rows, const std::vector<size_t>& chosen, const GivenRows& to);
  // rows: [num_keys] scratch memory of the device.
  int64_t EraseKeys(const int64_t* device_keys, int64_t num_keys, int64_t* rows);
  // Takes keys out of the index; their rows, or kNoRow, are nobody's then. Returns them, and writes
  // them to device_rows, [num_keys].
  std::vector<int64_t> TakeOut(const int64_t* device_keys, int64_t num_keys, int64_t* device_rows);
  // Takes the memory that so many free rows need.
  void ReserveFree(int64_t num_free);
  // Such rows may be given to other keys from now on. Takes that memory, too, if it is not there.
  void FreeRows(const std::vector<int64_t>& rows);
  int64_t EraseChosen(const Eviction& eviction, int64_t step);
  std::vector<RowArray> RowArrays() const;
  Status CopyForSnapshot(const int64_t* device_rows, int64_t num_rows, cudaStream_t stream);

  const TableOptions options_;
  const DeviceTierOptions tiers_;
  const int64_t max_bytes_;
  int device_ = 0;
  int64_t reserved_rows_ = 0;
  DeviceTableRef ref_{};  // what does not change

  mutable std::mutex mutex_;  // of all that follows
  mutable DeviceStreams streams_;
  int64_t device_rows_ = 0;  // the first so many are in device memory; 0: all
  std::unique_ptr<DeviceMemory> rows_, infos_;
  std::unique_ptr<Memory> free_rows_, candidates_, free_candidates_, bloom_;
  std::vector<SlotOptions> slots_;
  std::vector<std::unique_ptr<DeviceMemory>> slot_arrays_;
  std::unique_ptr<RowMoves> moves_;                  // null: all rows are in device memory
  std::unique_ptr<TierPrefetcher> tier_prefetcher_;  // null: no rows were brought yet
  std::unique_ptr<GrowingIndex> index_;
  TableReport* report_ = nullptr;  // page-locked
  int64_t usable_rows_ = 0, usable_candidates_ = 0, bloom_bytes_ = 0;

  int64_t enqueued_ = 0;      // keys, for training
  int64_t most_of_call_ = 0;  // of them
  int64_t rebuilt_at_ = 0;    // of them, when the index was made anew
  cudaStream_t training_stream_ = nullptr;
  bool may_be_full_ = false;
  Status full_because_;

  DeviceUse use_;
  std::unique_ptr<DeviceBudget> budget_;                   // null: without one
  int score_slot_ = -1, born_slot_ = -1, time_slot_ = -1;  // -1: there is none
  std::optional<PlacesArgs> places_;
  std::deque<Retired> retired_;  // a budget without a disk finds rows of erased keys itself
  int64_t clock_ = 0;
  std::multiset<int64_t> batches_;
  mutable ChangeLog changes_;
  std::shared_ptr<RowCopies> snapshot_;  // being read, or null
};

// As LocateRowsCuda to train, of one table whose mutex the caller holds, without its filter. A key
// for which there is no row has an initial row in `rows`. After an error, keys that were not
// reached keep what `rows` had.
Status InsertRowsCuda(DeviceHash* table, const int64_t* keys, int64_t num_keys, int64_t* rows,
                      void* scratch, cudaStream_t stream);

}  // namespace group_embedding
