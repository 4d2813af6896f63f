// The content of one instant of a HostShards, and the eviction that comes with it.
#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "table/host/host_shards.h"

namespace group_embedding {
namespace {

// A snapshot as its reader has it; the table knows the RowSnapshot in it for as long.
class HostSnapshot : public Snapshot {
 public:
  HostSnapshot(const EmbeddingTable& table, std::shared_ptr<RowSnapshot> rows,
               std::function<void(AdmissionState*)> read_counts,
               std::function<void()> forget_evicted, std::vector<int64_t> erased,
               const ChangeMark& mark, std::function<void()> keep,
               std::function<void(bool is_kept)> end)
      : table_(table),
        rows_(std::move(rows)),
        read_counts_(std::move(read_counts)),
        forget_evicted_(std::move(forget_evicted)),
        erased_(std::move(erased)),
        mark_(mark),
        keep_(std::move(keep)),
        end_(std::move(end)) {}
  ~HostSnapshot() override { end_(is_kept_); }

  const EmbeddingTable& table() const override { return table_; }
  int64_t num_rows() const override { return rows_->num_rows(); }
  void Read(int64_t begin, int64_t end, KeyedRows* rows) override {
    rows_->Read(begin, end, rows);
    forget_evicted_();
  }
  const AdmissionState& admission() override {
    if (read_counts_ != nullptr) std::exchange(read_counts_, nullptr)(&admission_);
    return admission_;
  }
  const std::vector<int64_t>& erased() const override { return erased_; }
  std::vector<int64_t> evicted() const override { return rows_->evicted(); }
  void Keep() override {
    keep_();
    is_kept_ = true;
  }
  const ChangeMark& mark() const override { return mark_; }

 private:
  const EmbeddingTable& table_;
  const std::shared_ptr<RowSnapshot> rows_;
  AdmissionState admission_;  // once it has been read
  std::function<void(AdmissionState*)> read_counts_;
  const std::function<void()> forget_evicted_;
  const std::vector<int64_t> erased_;
  const ChangeMark mark_;
  const std::function<void()> keep_;
  const std::function<void(bool)> end_;
  bool is_kept_ = false;
};

}  // namespace

void HostShards::Forget(Shard* shard, const RowSnapshot& snapshot, int64_t key, int64_t row) const {
  const bool has_row = shard->index.Find(key, HashOf(key)) == row;
  if (!has_row || store_.infos().IsKeys(row)) return;  // it is forgotten, and perhaps back again
  store_.RetireSince(snapshot.clock(), row);
  --shard->num_rows;
  shard->index.Erase(row, HashOf(key));
}

void HostShards::ForgetEvicted(RowSnapshot* snapshot) const {
  if (!snapshot->evicts()) return;
  std::lock_guard<std::mutex> one_at_a_time(eviction_mutex_);
  ExpiredCounts counts;
  for (const auto& [key, row] : snapshot->TakeEvicted(&counts)) {
    Shard& shard = ShardOf(HashOf(key));
    std::lock_guard<std::mutex> lock(shard.mutex);
    Forget(&shard, *snapshot, key, row);
  }
  use_.AddExpired(counts);
}

bool HostShards::CompleteEviction(const ParallelFor& parallel_for) const {
  const auto snapshot = this->snapshot();
  if (snapshot == nullptr || !snapshot->evicts()) return false;
  Complete(snapshot.get(), parallel_for);
  return true;
}

void HostShards::Complete(RowSnapshot* snapshot, const ParallelFor& parallel_for) const {
  const int64_t num_chunks = (snapshot->num_rows() + kEvictRows - 1) / kEvictRows;
  parallel_for(num_chunks, kEvictRows * kEvictNanoseconds, [&](int64_t begin, int64_t end) {
    snapshot->JudgeRows(begin * kEvictRows, end * kEvictRows);
  });
  ForgetEvicted(snapshot);
  snapshot->EndEviction();
}

void HostShards::ReadCounts(AdmissionState* state) {
  if (const auto counters = bloom_.snapshot(); counters != nullptr) {
    state->counters = counters->Read();
    bloom_.ForgetSnapshot();
  }
  auto add = [state](int64_t key, int64_t count) {
    if (count == 0) return;
    state->keys.push_back(key);
    state->counts.push_back(count);
  };
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    if (shard.former_counts == nullptr) continue;
    shard.ForEachCount([&](int64_t key, int64_t count) {
      if (shard.former_counts->count(key) == 0) add(key, count);
    });
    for (const auto& [key, count] : *shard.former_counts) add(key, count);
    shard.former_counts.reset();
  }
}

void HostShards::EndSnapshot(RowSnapshot* snapshot, bool is_full_save) {
  if (snapshot->evicts()) Complete(snapshot, SerialFor);
  if (!is_full_save || changes_.HasPublishers()) {
    const std::vector<int64_t> evicted = snapshot->evicted();
    changes_.erased()->insert(changes_.erased()->end(), evicted.begin(), evicted.end());
  }
  std::atomic_store(&snapshot_, std::shared_ptr<RowSnapshot>());
  bloom_.ForgetSnapshot();
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.former_counts.reset();
  }
}

// Batches in flight will write rows that they located before.
ChangeMark HostShards::Now() const { return {store_.OldestBatch(), changes_.num_erased()}; }

std::unique_ptr<Snapshot> HostShards::TakeSnapshot(bool changes_only, const Eviction& eviction,
                                                   int64_t step, int64_t follower) {
  const ChangeMark since = changes_only ? changes_.MarkOf(follower) : ChangeMark();
  auto rows =
      std::make_shared<RowSnapshot>(store_, since.clock, AsOfNow(eviction), step, evicted());
  if (rows->evicts()) MakePlaceOnceAnyGoes();
  std::atomic_store(&snapshot_, rows);
  if (options().admission.kind == Admission::Kind::kBloom) bloom_.TakeSnapshot();
  // With any other filter, every key that is known has a row.
  const bool has_counts = options().admission.kind == Admission::Kind::kCounter;
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.former_counts.reset(has_counts ? new std::unordered_map<int64_t, int64_t> : nullptr);
  }
  const ChangeMark now = Now();
  std::vector<int64_t> marks = changes_.Clocks();
  marks.push_back(now.clock);
  store_.SetMarks(std::move(marks));
  if (!changes_only && !changes_.Has(kSaves)) changes_.Follow(kSaves, now);
  auto keep = [this, changes_only, now] {
    if (!changes_only) changes_.Follow(kSaves, now);
  };
  RowSnapshot* of = rows.get();
  return std::make_unique<HostSnapshot>(
      *this, std::move(rows), [this](AdmissionState* state) { ReadCounts(state); },
      [this, of] { ForgetEvicted(of); },
      changes_only ? changes_.ErasedSince(since) : std::vector<int64_t>(), now, std::move(keep),
      [this, of, changes_only](bool is_kept) { EndSnapshot(of, is_kept && !changes_only); });
}

Status HostShards::ReadAll(KeyedRows* rows) const {
  CompleteEviction();
  RowSnapshot all(store_, /*changed_since=*/0);
  all.Read(0, all.num_rows(), rows);
  return {};
}

void HostShards::BeforeWrite(const int64_t* rows, int64_t num_rows) {
  const auto snapshot = std::atomic_load(&snapshot_);
  if (snapshot == nullptr) return;
  for (int64_t i = 0; i < num_rows; ++i) snapshot->BeforeWrite(rows[i]);
}

}  // namespace group_embedding
