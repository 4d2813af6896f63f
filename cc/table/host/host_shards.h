// HostShards: a keyed table in host memory. Keys are spread over shards by their hash, each with an
// index and a lock; the rows of all shards lie in one RowStore.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "table/embedding_table.h"
#include "table/host/bloom_counters.h"
#include "table/host/budget_bytes.h"
#include "table/host/budget_use.h"
#include "table/host/row_snapshot.h"
#include "table/host/row_store.h"
#include "table/host/table_shard.h"
#include "table/host/table_use.h"
#include "table/lowest_keys.h"
#include "table/row_records.h"

namespace group_embedding {

class KeysByShard;

// Where a table has the rows that do not fit its memory: a key's row is here or there.
class TierBelowMemory {
 public:
  virtual ~TierBelowMemory() = default;
  // Called before keys are located: others wait as long as the lock is held.
  virtual std::unique_lock<std::mutex> StartLocating() = 0;
  // The row, in memory, belongs to a key that is being located. Called for different rows at a
  // time.
  virtual void Use(int64_t row) = 0;
  // Called once all rows in memory are used: moves the rows of those of `keys` that are in this
  // tier into memory, and makes sure that there are free rows for the others, if `access` may give
  // them rows. `keys`: all different, none has a row in memory.
  virtual Status PrefetchRowsOf(std::vector<int64_t> keys, Access access,
                                const ParallelFor& parallel_for) = 0;
  // For a table with a budget: the keys below memory; PrefetchRowsOf has made an end of evictions
  // that came with a snapshot.
  virtual int64_t NumKeysBelow() = 0;
  // visit(key, head, values, slots), of every key below memory; slots: one after the other.
  using VisitBelow = std::function<void(int64_t key, const RecordHead& head, const char* values,
                                        const char* slots)>;
  virtual Status ForEachBelow(const VisitBelow& visit) const = 0;
  // keys: all different and below memory. rows: null, or what receives their rows.
  virtual Status EraseBelow(std::vector<int64_t> keys) = 0;
  // Whether a batch in flight, or this call, uses a row in memory.
  virtual bool IsUsed(int64_t row) const = 0;
  // Moves rows down until `num_rows` are free.
  virtual Status MakeSpaceFor(int64_t num_rows, const ParallelFor& parallel_for) = 0;
  // Called in the end: what was located, and for which batch.
  virtual void Hold(const int64_t* rows, int64_t num_rows, int64_t batch) = 0;
};

class HostShards : public EmbeddingTable, public HostTable {
 public:
  static constexpr int kNumShards = 64;
  static constexpr int kNoShard = TableUse<kNumShards>::kNoShard;

  using Shard = TableShard;

  HostShards(const TableOptions& options, const void* matrix, Status* error)
      : store_(options, matrix, error),
        bloom_(options.admission),
        shards_(MakeShards(store_.infos().data(), std::make_index_sequence<kNumShards>())),
        budget_(options.budget.is_given() ? new BudgetUse : nullptr) {
    const HandsOut hands_out = options.budget.hands_out;
    if (budget_ == nullptr || hands_out == HandsOut::kNothing) return;
    const int64_t row_bytes = hands_out == HandsOut::kRows ? store_.row_bytes() : 0;
    budget_->evicted = std::make_unique<EvictedRows>(row_bytes);
  }

  static uint64_t HashOf(int64_t key) { return MixBits(static_cast<uint64_t>(key)); }
  // Shards get up to twice as many keys as others: with u = hash / 2^64, the shard is 64 times
  // (u^2 + 2u) / 3. So their indexes grow at different times, and the sum of these grows evenly:
  // G. N. N. Martin, "Spiral storage" (1979). Neighbours in number are of different size.
  static int ShardIndex(uint64_t hash) {
    static_assert(RowIndex::kOwnersBits == 16 && kNumShards == 64);
    const uint64_t u = hash >> 48;
    const uint64_t by_size = u * (u + (2 << 16)) * ((64 << 16) / 3) >> 48;
    return static_cast<int>(by_size * 37 % kNumShards);
  }
  Shard& shard(int s) { return shards_[s]; }
  RowStore& store() { return store_; }
  const RowStore& store() const { return store_; }
  BloomCounters& bloom() { return bloom_; }
  std::shared_ptr<RowSnapshot> snapshot() const { return std::atomic_load(&snapshot_); }
  virtual TierBelowMemory* lower_tier() { return nullptr; }
  virtual bool has_tier_below() const { return false; }

  // The slots that a table has by its options. Called once, before the table is used.
  Status MakeOwnSlots();
  // Null: the table has no budget.
  BudgetUse* budget() { return budget_.get(); }
  // What receives evicted keys; null: they are not handed out.
  EvictedRows* evicted() const { return budget_ == nullptr ? nullptr : budget_->evicted.get(); }
  TableUse<kNumShards>& use() { return use_; }
  const TableUse<kNumShards>& use() const { return use_; }
  // How many keys the budget allows.
  int64_t BudgetKeys(const std::vector<SlotOptions>& more_slots = {}) const;
  // Why the budget is too small for a table without keys, or nothing.
  Status CheckBudgetKeys(const std::vector<SlotOptions>& more_slots = {}) const;
  // Evicts until there are places for `new_keys`, which have no row, if there can be. Returns those
  // of them that get none. own_batches: those of the call. The caller holds the budget's lock.
  Status MakePlaces(const std::vector<int64_t>& new_keys, int64_t step,
                    const std::vector<int64_t>& own_batches, const ParallelFor& parallel_for,
                    std::unordered_set<int64_t>* without_place);
  // Halves the counts of keys without a row, and forgets those that are 0, of each share that has
  // more of them than the budget allows keys; until it has not. The caller holds the budget's lock.
  void HalveCounts(const ParallelFor& parallel_for);
  // The row became a key's in this step.
  void MarkBorn(int64_t row, int64_t step) {
    if (born_slot_ < 0) return;
    const uint32_t mark = BornMark(step);
    std::memcpy(store_.SlotRow(born_slot_, row), &mark, sizeof(mark));
  }

  // The row that a key has in memory, or kNoRow. With the lock of the shard.
  int64_t RowOf(Shard& shard, RowSnapshot* snapshot, int64_t key, uint64_t hash) const;
  // A row of the index or kNoRow; kNoRow too if a snapshot has evicted its key.
  static int64_t UnlessEvicted(RowSnapshot* snapshot, int64_t row) {
    const bool is_evicted = row != kNoRow && snapshot != nullptr && snapshot->IsEvicted(row);
    return is_evicted ? kNoRow : row;
  }
  // The key, whose row that is, was evicted: makes an end of it. With the lock of the shard.
  void Forget(Shard* shard, const RowSnapshot& snapshot, int64_t key, int64_t row) const;
  // Completes an eviction that came with a snapshot; false: nothing was left of it. The caller
  // holds no shard's lock. Visible to other callers only in num_keys() and other totals.
  bool CompleteEviction(const ParallelFor& parallel_for = SerialFor) const;

  const TableOptions& options() const override { return store_.options(); }
  Table rows() const override { return {store_.Row(0), store_.num_rows(), options().dim, 0}; }
  HostTable* host() override { return this; }
  std::unique_ptr<RowLocator> Locate(std::vector<KeysToLocate> requests, Access access,
                                     int64_t step) override;
  Status ReadRows(const int64_t* keys, int64_t num_keys, void* values,
                  const ParallelFor& parallel_for) override;
  int64_t first_row() const override { return store_.first_row(); }
  RowKeys row_keys() const override {
    static_assert(offsetof(PackedInfo, key) == 0);
    return {reinterpret_cast<const char*>(store_.infos().data()), sizeof(PackedInfo)};
  }
  void ReadInitialRows(void* rows) const override {
    std::memcpy(rows, store_.Row(0), InitialBytes());
  }
  void WriteInitialRows(const void* rows) override {
    std::memcpy(store_.Row(0), rows, InitialBytes());
  }
  BudgetCounts budget_counts() const override;
  UseCounts use_counts() const override;
  void TakeEvicted(KeyedRows* rows) override;
  void DropEvicted() override;
  void CountWithoutPlace(int64_t num_keys) override;
  Status SetScores(const int64_t* keys, int64_t num_keys, const float* scores) override;
  Status Slot(const SlotOptions& slot, void** array) override;
  Status CheckSlots(const std::vector<SlotOptions>& more) const override;
  const std::vector<SlotOptions>& slots() const override { return store_.slots(); }
  int64_t num_keys() const override;
  int64_t max_keys(const std::vector<SlotOptions>& slots) const override {
    const int64_t max_rows = store_.max_rows(slots);
    return budget_ == nullptr ? max_rows : std::min(max_rows, BudgetKeys(slots));
  }
  int64_t memory_bytes() const override;
  float load_factor() const override;
  void Find(const int64_t* keys, int64_t num_keys, int64_t* rows) const override;
  RowInfo Info(int64_t row) const override;
  Status ReadAll(KeyedRows* rows) const override;
  Status Insert(const KeyedRowsView& rows, const ParallelFor& parallel_for) override;
  int64_t Erase(const int64_t* keys, int64_t num_keys) override;
  Status Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const override;
  int64_t Evict(const Eviction& eviction, int64_t step, const ParallelFor& parallel_for) override;
  void Clear() override;
  void SetAdmissionState(const AdmissionState& state) override;
  ChangeLog* changes() override { return &changes_; }
  ChangeMark Now() const override;
  std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction, int64_t step,
                                         int64_t follower) override;
  void BeforeWrite(const int64_t* rows, int64_t num_rows) override;
  int64_t BeginBatch() override { return store_.BeginBatch(); }
  void EndBatch(int64_t batch) override { store_.EndBatch(batch); }

 protected:
  // The lock of training, if the table has a budget.
  std::unique_lock<std::mutex> LockBudget() const;
  int64_t NumKeysInMemory() const;
  Shard& ShardOf(uint64_t hash) const { return shards_[ShardIndex(hash)]; }
  // As Insert does, of rows.keys[i].
  Status InsertOne(const KeyedRowsView& rows, int64_t i);
  // Before `given` are inserted: drops the lowest of these and of the table's together, until the
  // rest fits the budget. is_changed: `kept` is to be inserted in their place.
  Status FitIntoBudget(const KeyedRowsView& given, KeyedRows* kept, bool* is_changed);

  ChangeLog changes_;

 private:
  class Inserter;

  static constexpr int64_t kEvictRows = 1 << 14;   // that one thread looks at, at a time
  static constexpr int64_t kEvictNanoseconds = 3;  // a row, about

  template <size_t... s>
  static std::array<Shard, kNumShards> MakeShards(const PackedInfo* infos,
                                                  std::index_sequence<s...>) {
    return {Shard(infos, HashOf, 0.4f + 0.3f * s / kNumShards)...};
  }

  BudgetBytes BytesOfKeys(const std::vector<SlotOptions>& more_slots) const;
  int64_t InitialBytes() const { return options().initial.matrix_rows * store_.row_bytes(); }
  // Appends what was counted of keys without a row when a snapshot was taken, once.
  void ReadCounts(AdmissionState* state);
  // Forgets the keys of rows that were judged.
  void ForgetEvicted(RowSnapshot* snapshot) const;
  void Complete(RowSnapshot* snapshot, const ParallelFor& parallel_for) const;
  // `is_full_save`: it was kept, and has all rows.
  void EndSnapshot(RowSnapshot* snapshot, bool is_full_save);
  // The keys of shard s; `parts` are all keys of `rows`, one part after the other.
  Status InsertInShard(const KeyedRowsView& rows, const std::vector<KeysByShard>& parts, int s);

  // Evicts the lowest of each share.
  Status EvictLowest(const std::vector<int64_t>& num_to_go, int64_t step,
                     const std::vector<int64_t>& own_batches, const ParallelFor& parallel_for);
  // more: candidates beside the table's keys; kept: keys that are none.
  Status FindLowest(const std::vector<int64_t>& num_to_go, int64_t step,
                    const ParallelFor& parallel_for, std::vector<EvictionCandidate>* found,
                    const std::vector<EvictionCandidate>& more = {},
                    const std::unordered_set<int64_t>& kept = {});
  EvictionOrder GuessBound(int64_t count, int64_t step) const;
  void FindInMemory(const LowestOfShares& lowest, int64_t step,
                    const std::unordered_set<int64_t>& kept, const ParallelFor& parallel_for);
  Status FindBelow(const LowestOfShares& lowest, int64_t step,
                   const std::unordered_set<int64_t>& kept);
  void EraseInShard(const std::vector<EvictionCandidate>& some, Shard* shard);
  Status EraseLowest(const std::vector<EvictionCandidate>& lowest,
                     const std::vector<int64_t>& own_batches, const ParallelFor& parallel_for);
  Status CountShares(std::vector<int64_t>* num_keys);
  Status ShrinkFor(const SlotOptions& slot);
  void CountCounted();
  void HandOut(const std::vector<EvictionCandidate>& lowest);
  // An eviction begins, of so many keys or of perhaps none: see EvictedRows.
  void MakePlaceForEvicted(int64_t num_keys);
  void MakePlaceOnceAnyGoes();
  int64_t MostHandedOut();  // how many keys may wait to be taken

  mutable RowStore store_;
  BloomCounters bloom_;
  mutable std::array<Shard, kNumShards> shards_;
  std::shared_ptr<RowSnapshot> snapshot_;  // being read, or null
  mutable std::mutex eviction_mutex_;      // of who forgets keys; taken before that of a shard
  const std::unique_ptr<BudgetUse> budget_;
  mutable TableUse<kNumShards> use_;
  int score_slot_ = -1, born_slot_ = -1;  // of the budget; -1: it needs none
};

}  // namespace group_embedding
