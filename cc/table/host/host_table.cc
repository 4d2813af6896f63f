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

constexpr int64_t kEraseAhead = 16;  // keys whose entries are asked for

}  // namespace

int64_t HostShards::RowOf(Shard& shard, RowSnapshot* snapshot, int64_t key, uint64_t hash) const {
  return UnlessEvicted(snapshot, shard.index.Find(key, hash));
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

RowInfo HostShards::Info(int64_t row) const { return store_.infos().Info(row); }

Status HostShards::Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const {
  const bool has_bloom = options().admission.kind == Admission::Kind::kBloom;
  const auto snapshot = this->snapshot();
  for (int64_t i = 0; i < num_keys; ++i) {
    const uint64_t hash = HashOf(keys[i]);
    Shard& shard = ShardOf(hash);
    std::lock_guard<std::mutex> lock(shard.mutex);
    const int64_t row = RowOf(shard, snapshot.get(), keys[i], hash);
    if (row != kNoRow) {
      infos[i] = {0, store_.infos().CountOf(row), store_.infos().VersionOf(row)};
      continue;
    }
    const int64_t counted = has_bloom ? bloom_.Count(hash) : shard.CountOf(keys[i], hash);
    infos[i] = {kNoTier, counted > 0 ? counted : -1, -1};
  }
  return {};
}

std::unique_lock<std::mutex> HostShards::LockBudget() const {
  return budget_ == nullptr ? std::unique_lock<std::mutex>()
                            : std::unique_lock<std::mutex>(budget_->training);
}

int64_t HostShards::num_keys() const {
  const auto lock = LockBudget();  // so that the sum is of one moment
  return NumKeysInMemory();
}

int64_t HostShards::NumKeysInMemory() const {
  CompleteEviction();
  int64_t total = 0;
  for (Shard& shard : shards_) total += shard.num_rows.load(std::memory_order_relaxed);
  return total;
}

int64_t HostShards::memory_bytes() const {
  int64_t total = store_.memory_bytes() + static_cast<int64_t>(bloom_.bytes());
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    total += shard.bytes();
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
    shard.ForgetCount(key, hash);
    const int64_t row = shard.index.Find(key, hash);
    if (row == kNoRow) continue;
    BeforeWrite(&row, 1);
    // What may find no memory comes first: what follows is done whole.
    std::vector<int64_t>& erased = *changes_.erased();
    if (erased.size() == erased.capacity()) erased.reserve(2 * erased.size() + 1);
    store_.Retire(row);
    shard.index.Erase(row, hash);
    --shard.num_rows;
    ++num_erased;
    erased.push_back(key);
  }
  return num_erased;
}

int64_t HostShards::Evict(const Eviction& given, int64_t step, const ParallelFor& parallel_for) {
  CompleteEviction(parallel_for);
  MakePlaceOnceAnyGoes();
  const Eviction eviction = AsOfNow(given);
  const int64_t num_chunks = (store_.num_rows() + kEvictRows - 1) / kEvictRows;
  std::vector<std::vector<int64_t>> chosen(num_chunks);
  std::vector<ExpiredCounts> counts(num_chunks);
  const RowInfos& infos = store_.infos();
  const TableOptions& table_options = options();
  parallel_for(num_chunks, kEvictRows * kEvictNanoseconds, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      std::vector<int64_t> rows;
      const int64_t end_row = std::min((chunk + 1) * kEvictRows, store_.num_rows());
      for (int64_t row = std::max(chunk * kEvictRows, first_row()); row < end_row; ++row) {
        if (!infos.IsKeys(row)) continue;
        const auto policy = EvictedBy(table_options, eviction, step, infos.VersionOf(row),
                                      store_.Row(row), store_.MinuteOf(row));
        if (policy == Eviction::Kind::kNone) continue;
        Count(policy, &counts[chunk]);
        rows.push_back(row);
      }
      chosen[chunk] = std::move(rows);
    }
  });
  int64_t num_erased = 0;
  for (const std::vector<int64_t>& rows : chosen) {
    std::vector<int64_t> keys;
    for (const int64_t row : rows) {
      const RowInfo info = infos.Info(row);
      keys.push_back(info.key);
      if (evicted() != nullptr) evicted()->Add(info.key, info.count, info.version, store_.Row(row));
    }
    num_erased += HostShards::Erase(keys.data(), static_cast<int64_t>(keys.size()));
  }
  for (const ExpiredCounts& of_chunk : counts) use_.AddExpired(of_chunk);
  return num_erased;
}

UseCounts HostShards::use_counts() const {
  UseCounts counts;
  use_.AddTo(&counts);
  int64_t num_found = 0, num_in_memory = 0;
  for (const Shard& shard : shards_) {
    num_found += shard.use.num_found;
    counts.num_looked_up += shard.use.num_found + shard.use.num_without;
    num_in_memory += shard.use.num_in_memory;
    counts.num_admitted += shard.use.num_admitted;
  }
  // A call that failed has looked in memory alone.
  counts.num_found[0] = has_tier_below() ? std::min(num_in_memory, num_found) : num_found;
  counts.num_found[1] = num_found - counts.num_found[0];
  const int64_t stride = 1 + (store_.num_rows() - first_row()) / kMostLookedAt;
  for (int64_t row = first_row(); row < store_.num_rows(); row += stride) {
    if (!store_.infos().IsKeys(row)) continue;
    counts.AddAge(last_step(), store_.infos().VersionOf(row));
  }
  return counts;
}

void HostShards::Clear() {
  std::vector<int64_t> keys;
  for (Shard& shard : shards_) {
    shard.index.ForEach([&](int64_t row) { keys.push_back(store_.infos().KeyOf(row)); });
    shard.ForEachCount([&](int64_t key, int64_t) { keys.push_back(key); });
  }
  HostShards::Erase(keys.data(), static_cast<int64_t>(keys.size()));
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.index.Clear();
  }
  bloom_.Clear();
}

void HostShards::SetAdmissionState(const AdmissionState& state) {
  CompleteEviction();
  if (budget_ != nullptr) budget_->counted_of_share.clear();
  for (Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    std::vector<int64_t> counted;
    shard.ForEachCount([&](int64_t key, int64_t) { counted.push_back(key); });
    for (const int64_t key : counted) shard.ForgetCount(key, HashOf(key));
  }
  for (size_t i = 0; i < state.keys.size(); ++i) {
    const uint64_t hash = HashOf(state.keys[i]);
    Shard& shard = ShardOf(hash);
    std::lock_guard<std::mutex> lock(shard.mutex);
    if (shard.index.Find(state.keys[i], hash) != kNoRow) continue;
    shard.SetCount(state.keys[i], hash, std::clamp<int64_t>(state.counts[i], 1, kMaxCount));
  }
  bloom_.SetCounters(state.counters);
}

std::unique_ptr<EmbeddingTable> MakeHostTable(const TableOptions& options, const void* matrix,
                                              Status* error) {
  *error = CheckOptions(options);
  if (!error->ok()) return nullptr;
  auto table = std::make_unique<HostShards>(options, matrix, error);
  if (error->ok()) *error = table->MakeOwnSlots();
  if (!error->ok()) return nullptr;
  return table;
}

}  // namespace group_embedding
