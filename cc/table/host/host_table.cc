#include "table/host/host_table.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "table/check_table.h"
#include "table/eviction.h"
#include "table/host/host_shards.h"

namespace group_embedding {
namespace {

constexpr int64_t kEvictRows = 1 << 14;   // that one thread looks at, at a time
constexpr int64_t kEvictNanoseconds = 3;  // a row, about
constexpr int64_t kEraseAhead = 16;       // keys whose entries are asked for

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

int64_t HostShards::RowOf(Shard& shard, RowSnapshot* snapshot, int64_t key, uint64_t hash) const {
  const KeyIndex::Entry* entry = shard.index.Find(key, hash);
  if (entry == nullptr || entry->state < 0) return kNoRow;
  const int64_t row = entry->state - 1;
  return snapshot != nullptr && snapshot->IsEvicted(row) ? kNoRow : row;
}

void HostShards::Find(const int64_t* keys, int64_t num_keys, int64_t* rows) const {
  const auto snapshot = this->snapshot();
  for (int64_t i = 0; i < num_keys; ++i) {
    const uint64_t hash = HashOf(keys[i]);
    Shard& shard = ShardOf(hash);
    std::lock_guard<std::mutex> lock(shard.mutex);
    rows[i] = RowOf(shard, snapshot.get(), keys[i], hash);
  }
}

RowInfo HostShards::Info(int64_t row) const { return store_.Info(row); }

Status HostShards::Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const {
  const bool has_bloom = options().admission.kind == Admission::Kind::kBloom;
  const auto snapshot = this->snapshot();
  for (int64_t i = 0; i < num_keys; ++i) {
    const uint64_t hash = HashOf(keys[i]);
    Shard& shard = ShardOf(hash);
    std::lock_guard<std::mutex> lock(shard.mutex);
    const int64_t row = RowOf(shard, snapshot.get(), keys[i], hash);
    if (row != kNoRow) {
      const RowInfo info = store_.Info(row);
      infos[i] = {0, info.count, info.version};
      continue;
    }
    const KeyIndex::Entry* entry = shard.index.Find(keys[i], hash);
    int64_t counted = entry != nullptr ? -entry->state : 0;
    if (has_bloom) counted = bloom_.Count(hash);
    infos[i] = {kNoTier, counted > 0 ? counted : -1, -1};
  }
  return {};
}

int64_t HostShards::num_keys() const {
  CompleteEviction();
  int64_t total = 0;
  for (Shard& shard : shards_) total += shard.num_rows.load(std::memory_order_relaxed);
  return total;
}

int64_t HostShards::memory_bytes() const {
  int64_t total = store_.memory_bytes() + static_cast<int64_t>(bloom_.bytes());
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    total += shard.index.bytes();
  }
  return total;
}

float HostShards::load_factor() const {
  double size = 0, capacity = 0;
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    size += static_cast<double>(shard.index.size());
    capacity += static_cast<double>(shard.index.capacity());
  }
  return static_cast<float>(size / capacity);
}

int64_t HostShards::Erase(const int64_t* keys, int64_t num_keys) {
  CompleteEviction();
  int64_t num_erased = 0;
  for (int64_t i = 0; i < num_keys; ++i) {
    if (i + kEraseAhead < num_keys) {
      const uint64_t hash = HashOf(keys[i + kEraseAhead]);
      ShardOf(hash).index.Prefetch(hash);
    }
    const int64_t key = keys[i];
    const uint64_t hash = HashOf(key);
    Shard& shard = ShardOf(hash);
    std::lock_guard<std::mutex> lock(shard.mutex);
    KeyIndex::Entry* entry = shard.index.Find(key, hash);
    if (entry == nullptr) continue;
    shard.BeforeChange(key, entry->state);
    if (entry->state > 0) {
      const int64_t row = entry->state - 1;
      BeforeWrite(&row, 1);
      // What may find no memory comes first: what follows is done whole.
      std::vector<int64_t>& erased = *changes_.erased();
      if (erased.size() == erased.capacity()) erased.reserve(2 * erased.size() + 1);
      store_.Retire(row);
      --shard.num_rows;
      ++num_erased;
      erased.push_back(key);
    }
    shard.index.Erase(entry, HashOf);
  }
  return num_erased;
}

int64_t HostShards::Evict(const Eviction& eviction, int64_t step, const ParallelFor& parallel_for) {
  CompleteEviction(parallel_for);
  const int64_t num_chunks = (store_.num_rows() + kEvictRows - 1) / kEvictRows;
  std::vector<std::vector<int64_t>> chosen(num_chunks);
  const RowInfo* infos = &store_.Info(0);
  const TableOptions& table_options = options();
  parallel_for(num_chunks, kEvictRows * kEvictNanoseconds, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      std::vector<int64_t> keys;
      const int64_t end_row = std::min((chunk + 1) * kEvictRows, store_.num_rows());
      for (int64_t row = std::max(chunk * kEvictRows, first_row()); row < end_row; ++row) {
        const RowInfo& info = infos[row];
        if (info.count < 0) continue;  // it is no key's
        if (IsToEvict(table_options, eviction, step, info.version, store_.Row(row))) {
          keys.push_back(info.key);
        }
      }
      chosen[chunk] = std::move(keys);
    }
  });
  int64_t num_erased = 0;
  for (const std::vector<int64_t>& keys : chosen) {
    num_erased += HostShards::Erase(keys.data(), static_cast<int64_t>(keys.size()));
  }
  return num_erased;
}

void HostShards::Forget(Shard* shard, const RowSnapshot& snapshot, int64_t key, int64_t row) const {
  KeyIndex::Entry* entry = shard->index.Find(key, HashOf(key));
  const bool has_row = entry != nullptr && entry->state == row + 1;
  if (!has_row || store_.Info(row).count >= 0) return;  // it is forgotten, and perhaps back again
  shard->BeforeChange(key, entry->state);
  store_.RetireSince(snapshot.clock(), row);
  --shard->num_rows;
  shard->index.Erase(entry, HashOf);
}

void HostShards::ForgetEvicted(RowSnapshot* snapshot) const {
  if (!snapshot->evicts()) return;
  std::lock_guard<std::mutex> one_at_a_time(eviction_mutex_);
  for (const auto& [key, row] : snapshot->TakeEvicted()) {
    Shard& shard = ShardOf(HashOf(key));
    std::lock_guard<std::mutex> lock(shard.mutex);
    Forget(&shard, *snapshot, key, row);
  }
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

void HostShards::Clear() {
  std::vector<int64_t> keys;
  for (Shard& shard : shards_) {
    shard.index.ForEach([&](KeyIndex::Entry& entry) { keys.push_back(entry.key); });
  }
  HostShards::Erase(keys.data(), static_cast<int64_t>(keys.size()));
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.index.Clear();
  }
  bloom_.Clear();
}

void HostShards::ReadCounts(AdmissionState* state) {
  if (const auto counters = bloom_.snapshot(); counters != nullptr) {
    state->counters = counters->Read();
    bloom_.ForgetSnapshot();
  }
  auto add = [state](int64_t key, int64_t entry_state) {
    if (entry_state >= 0) return;
    state->keys.push_back(key);
    state->counts.push_back(-entry_state);
  };
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    if (shard.former_counts == nullptr) continue;
    shard.index.ForEach([&](KeyIndex::Entry& entry) {
      const bool is_former = shard.former_counts->count(entry.key) > 0;
      if (entry.state < 0 && !is_former) add(entry.key, entry.state);
    });
    for (const auto& [key, entry_state] : *shard.former_counts) add(key, entry_state);
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

void HostShards::SetAdmissionState(const AdmissionState& state) {
  CompleteEviction();
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    std::vector<int64_t> counted;
    shard.index.ForEach([&](KeyIndex::Entry& entry) {
      if (entry.state < 0) counted.push_back(entry.key);
    });
    for (const int64_t key : counted) {
      KeyIndex::Entry* entry = shard.index.Find(key, HashOf(key));
      shard.BeforeChange(key, entry->state);
      shard.index.Erase(entry, HashOf);
    }
  }
  for (size_t i = 0; i < state.keys.size(); ++i) {
    const uint64_t hash = HashOf(state.keys[i]);
    Shard& shard = ShardOf(hash);
    std::lock_guard<std::mutex> lock(shard.mutex);
    const KeyIndex::Entry* found = shard.index.Find(state.keys[i], hash);
    if (found != nullptr && found->state > 0) continue;
    shard.BeforeChange(state.keys[i], found == nullptr ? 0 : found->state);
    const int64_t count = std::clamp<int64_t>(state.counts[i], 1, kMaxCount);
    shard.index.FindOrInsert(state.keys[i], hash, HashOf)->state = -count;
  }
  bloom_.SetCounters(state.counters);
}

// Batches in flight will write rows that they located before.
ChangeMark HostShards::Now() const { return {store_.OldestBatch(), changes_.num_erased()}; }

std::unique_ptr<Snapshot> HostShards::TakeSnapshot(bool changes_only, const Eviction& eviction,
                                                   int64_t step, int64_t follower) {
  const ChangeMark since = changes_only ? changes_.MarkOf(follower) : ChangeMark();
  auto rows = std::make_shared<RowSnapshot>(store_, since.clock, eviction, step);
  std::atomic_store(&snapshot_, rows);
  if (options().admission.kind == Admission::Kind::kBloom) bloom_.TakeSnapshot();
  // With any other filter, every key that is known has a row.
  const bool has_counts = options().admission.kind == Admission::Kind::kCounter;
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.former_counts.reset(has_counts ? new std::unordered_map<int64_t, int64_t> : nullptr);
  }
  const ChangeMark now = Now();
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

std::unique_ptr<EmbeddingTable> MakeHostTable(const TableOptions& options, const void* matrix,
                                              Status* error) {
  *error = CheckOptions(options);
  if (!error->ok()) return nullptr;
  auto table = std::make_unique<HostShards>(options, matrix, error);
  if (!error->ok()) return nullptr;
  return table;
}

}  // namespace group_embedding
