// ShardTask: locates the keys of a call that belong to one shard of a table in host memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "table/free_rows.h"
#include "table/host/host_shards.h"
#include "table/host/keys_by_shard.h"
#include "table/host/rows_of_no_key.h"

namespace group_embedding {
namespace locate_rows {

constexpr int kNumShards = HostShards::kNumShards;

using KeySet = std::unordered_set<int64_t>;

// Some keys of one request.
struct KeyChunk {
  KeysByShard keys;
  int64_t* rows;
  const int64_t* times;  // how often each came; null: once
  int64_t* reads;        // as of KeysToLocate

  int64_t TimesOf(int64_t i) const { return times == nullptr ? 1 : times[i]; }
};

inline void AddChunks(const KeysToLocate& request, std::vector<KeyChunk>* chunks) {
  constexpr int64_t kMost = KeysByShard::kMostKeys;
  for (int64_t begin = 0; begin < request.num_keys; begin += kMost) {
    const KeysByShard keys(request.keys + begin, std::min(kMost, request.num_keys - begin));
    const int64_t* times = request.times == nullptr ? nullptr : request.times + begin;
    int64_t* reads = request.reads == nullptr ? nullptr : request.reads + begin;
    chunks->push_back({keys, request.rows + begin, times, reads});
  }
}

// One key of a call, where it came.
struct Occurrence {
  const KeyChunk* chunk;
  int64_t i, key;

  int64_t row() const { return chunk->rows[i]; }  // once it was found
  int64_t times() const { return chunk->TimesOf(i); }
  // What is trained, and read too.
  void SetRow(int64_t row) const { SetRow(row, row); }
  void SetRow(int64_t row, int64_t read) const {
    chunk->rows[i] = row;
    if (chunk->reads != nullptr) chunk->reads[i] = read;
  }
};

// All keys of one table: its features may be several.
struct TableKeys {
  HostShards* table;
  std::vector<KeyChunk> chunks;
  bool is_counted = true;                    // as of KeysToLocate
  int sampled_shard = HostShards::kNoShard;  // whose keys the call counts

  // A call begins.
  void Begin(HostShards* of, const std::vector<KeysToLocate>& requests) {
    table = of;
    for (const KeysToLocate& request : requests) {
      AddChunks(request, &chunks);
      is_counted = request.is_counted;
    }
    if (is_counted) sampled_shard = of->use().BeginCall();
  }
  int64_t NumKeys() const {
    int64_t total = 0;
    for (const KeyChunk& chunk : chunks) total += chunk.keys.num_keys();
    return total;
  }
  int64_t NumIds() const {
    int64_t total = 0;
    for (const KeyChunk& chunk : chunks) {
      const int64_t num_keys = chunk.keys.num_keys();
      total += chunk.times == nullptr
                   ? num_keys
                   : std::accumulate(chunk.times, chunk.times + num_keys, int64_t{0});
    }
    return total;
  }
};

// One shard of one table.
class ShardTask {
 public:
  ShardTask(const TableKeys& keys, int s, int64_t step)
      : table_(*keys.table),
        store_(table_.store()),
        keys_(keys),
        shard_(table_.shard(s)),
        s_(s),
        step_(step),
        minute_(table_.options().KeepsTime() ? static_cast<uint32_t>(table_.Minute()) : 0),
        snapshot_(table_.snapshot()) {}
  // Counted at once: an atomic addition per key waits for all that is being written.
  ~ShardTask() {
    shard_.num_rows += num_started_;
    ShardUse::Add(num_started_, &shard_.use.num_admitted);
    if (!keys_.is_counted) return;
    ShardUse::Add(num_found_, &shard_.use.num_found);
    ShardUse::Add(num_without_, &shard_.use.num_without);
    ShardUse::Add(num_in_memory_, &shard_.use.num_in_memory);
  }
  ShardTask(const ShardTask&) = delete;
  ShardTask& operator=(const ShardTask&) = delete;

  // Marks rows as used, and appends the keys that have none in memory, each once.
  void Use(TierBelowMemory* tier, std::vector<int64_t>* without) {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll([&](const Occurrence& seen) { without->push_back(seen.key); },
            [&](const Occurrence& seen) {
              tier->Use(seen.row());
              ++num_in_memory_;
            });
    std::sort(without->begin(), without->end());
    without->erase(std::unique(without->begin(), without->end()), without->end());
  }

  void Read() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll(
        [this](const Occurrence& seen) {
          seen.SetRow(store_.DefaultRow(seen.key));
          ++num_without_;
        },
        [this](const Occurrence& seen) {
          seen.SetRow(seen.row());
          ++num_found_;
        });
  }

  // Counts how often keys come, if the call chose the shard; needs no lock.
  void SampleIfChosen() const {
    if (keys_.sampled_shard != s_) return;
    KeySample sample;
    std::unordered_map<int64_t, int64_t> times;
    for (const KeyChunk& chunk : keys_.chunks) {
      chunk.keys.ForShard(
          s_, [](int64_t, uint64_t) {}, [](uint64_t) { return int64_t{0}; },
          [&](int64_t i, int64_t key, uint64_t, int64_t) {
            int64_t& of_key = times[key] += chunk.TimesOf(i);
            sample.num_ids += chunk.TimesOf(i);
            sample.most = std::max(sample.most, of_key);
          });
    }
    sample.num_keys = static_cast<int64_t>(times.size());
    table_.use().SetSample(s_, sample, keys_.NumIds());
  }

  // Counts keys without a row in the table's Bloom filter.
  void CountInBloom() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    const std::shared_ptr<BloomSnapshot> snapshot = table_.bloom().snapshot();
    FindAll(
        [&](const Occurrence& seen) {
          table_.bloom().Add(HostShards::HashOf(seen.key), seen.times(), snapshot.get());
        },
        [](const Occurrence&) {});
  }

  Status Train() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    std::vector<Occurrence> without;
    TrainKnown(&without);
    if (without.empty()) return {};
    CountExactly(without);
    FreeRows free(store_, static_cast<int64_t>(without.size()), RowsAtOnce());
    return Admit(without, &free, nullptr);
  }

  // Trains the keys that have a row, counts the others, and sets `new_keys` to those that are to
  // get a row, each once.
  void FindNew(std::vector<Occurrence>* without, std::vector<int64_t>* new_keys) {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    TrainKnown(without);
    CountExactly(*without);
    for (const Occurrence& seen : *without) {
      if (IsAdmitted(seen.key)) new_keys->push_back(seen.key);
    }
    std::sort(new_keys->begin(), new_keys->end());
    new_keys->erase(std::unique(new_keys->begin(), new_keys->end()), new_keys->end());
  }

  // After FindNew: gives rows to `num_new` keys, all but those in `without_place`. These read what
  // they start as; they train rows that no key has.
  // num_to_lend: how many rows there are for these.
  Status StartNew(const std::vector<Occurrence>& without, int64_t num_new,
                  const KeySet& without_place, std::atomic<int64_t>* num_to_lend) {
    if (without.empty()) return {};
    std::lock_guard<std::mutex> lock(shard_.mutex);
    for (const Occurrence& seen : without) shard_.index.Prefetch(HostShards::HashOf(seen.key));
    FreeRows free(store_, num_new);
    return Admit(without, &free, without_place.empty() ? nullptr : &without_place, num_to_lend);
  }

 private:
  // A lower tier leaves no more free rows than all shards need together.
  int64_t RowsAtOnce() const { return table_.lower_tier() == nullptr ? 64 : 1; }

  bool AdmitsAll() const { return table_.options().admission.kind == Admission::Kind::kAll; }

  void TrainKnown(std::vector<Occurrence>* without) {
    FindAll([&](const Occurrence& seen) { without->push_back(seen); },
            [&](const Occurrence& seen) {
              Touch(seen.row(), seen.times());
              seen.SetRow(seen.row());
              ++num_found_;
            });
    num_without_ += static_cast<int64_t>(without->size());
  }

  // Writes the rows of keys that have one, and tells of both kinds.
  template <typename Without, typename With>
  void FindAll(const Without& without, const With& with) {
    if (snapshot_ != nullptr && snapshot_->evicts()) return FindAllButEvicted(without, with);
    FindInIndex(without, with);
  }

  template <typename Without, typename With>
  void FindInIndex(const Without& without, const With& with) {
    for (const KeyChunk& chunk : keys_.chunks) {
      auto find = [&](int64_t i, int64_t key, uint64_t hash, int64_t probable_row) {
        const int64_t row = shard_.index.Find(key, hash, probable_row);
        if (row == kNoRow) return without({&chunk, i, key});
        chunk.rows[i] = row;
        with({&chunk, i, key});
      };
      chunk.keys.ForShard(
          s_, [this](int64_t, uint64_t hash) { shard_.index.Prefetch(hash); },
          [this](uint64_t hash) { return shard_.index.PrefetchInfo(hash); }, find);
    }
  }

  // As FindInIndex, during an eviction: an evicted key that is found is removed from the index.
  template <typename Without, typename With>
  void FindAllButEvicted(const Without& without, const With& with) {
    std::vector<Occurrence> all;
    FindInIndex(without, [&](const Occurrence& seen) { all.push_back(seen); });
    for (const Occurrence& seen : all) {
      if (!snapshot_->IsEvicted(seen.row())) {
        with(seen);
        continue;
      }
      table_.Forget(&shard_, *snapshot_, seen.key, seen.row());
      without(seen);
    }
  }

  void Touch(int64_t row, int64_t times) {
    if (snapshot_ != nullptr) snapshot_->BeforeWrite(row);
    RowInfos& infos = store_.infos();
    const int64_t decay_steps = table_.options().budget.decay_steps;
    const int64_t count =
        DecayedCount(infos.CountOf(row), infos.VersionOf(row), step_, decay_steps);
    infos.SetTrained(row, AddToCount(count, times), step_);
    store_.SetMinute(row, minute_);
  }

  static int64_t AddToCount(int64_t count, int64_t times) {
    return times < kMaxCount - count ? count + times : kMaxCount;
  }

  Status Admit(const std::vector<Occurrence>& without, FreeRows* free, const KeySet* without_place,
               std::atomic<int64_t>* num_to_lend = nullptr) {
    return AdmitsAll() ? AdmitAll(without, free, without_place, num_to_lend)
                       : AdmitOftenSeen(without, free, without_place);
  }

  // Gives every key a row.
  Status AdmitAll(const std::vector<Occurrence>& occurrences, FreeRows* free,
                  const KeySet* without_place, std::atomic<int64_t>* num_to_lend) {
    RowsOfNoKey lent(&table_, num_to_lend);
    for (const Occurrence& seen : occurrences) {
      if (without_place != nullptr && without_place->count(seen.key) > 0) {
        seen.SetRow(lent.RowFor(seen.key));
        continue;
      }
      int64_t row = RowOf(seen.key);
      if (row == kNoRow) row = Start(free, seen.key, 0);
      if (row == kNoRow) continue;  // the table is full: the key is left as if it had not come
      seen.SetRow(row);
      Touch(row, seen.times());
    }
    return free->status();
  }

  // Gives a row to keys seen often enough. As no key had a row before the call, all are read as
  // keys without one.
  Status AdmitOftenSeen(const std::vector<Occurrence>& occurrences, FreeRows* free,
                        const KeySet* without_place) {
    for (const Occurrence& seen : occurrences) {
      const int64_t key = seen.key, read = store_.DefaultRow(key);
      int64_t row = RowOf(key);
      const bool has_place = without_place == nullptr || without_place->count(key) == 0;
      if (row == kNoRow && has_place && IsAdmitted(key)) row = Start(free, key, CountOf(key));
      seen.SetRow(row == kNoRow ? read : row, read);
    }
    return free->status();
  }

  // How often a key without a row was seen.
  int64_t CountOf(int64_t key) const {
    const uint64_t hash = HostShards::HashOf(key);
    const bool has_bloom = table_.options().admission.kind == Admission::Kind::kBloom;
    return has_bloom ? table_.bloom().Count(hash) : shard_.CountOf(key, hash);
  }
  bool IsAdmitted(int64_t key) const {
    return AdmitsAll() || CountOf(key) >= MinCountOf(table_.options().admission, key);
  }

  // Counts keys without a row, if their counts are exact. All occurrences are counted before any
  // key is admitted.
  void CountExactly(const std::vector<Occurrence>& occurrences) {
    if (table_.options().admission.kind != Admission::Kind::kCounter) return;
    for (const Occurrence& seen : occurrences) Count(seen.key, seen.times());
  }

  void Count(int64_t key, int64_t times) {
    const uint64_t hash = HostShards::HashOf(key);
    const int64_t count = shard_.CountOf(key, hash);
    shard_.SetCount(key, hash, AddToCount(count, times));
    if (count == 0 && table_.budget() != nullptr) ++table_.budget()->num_counted;
  }

  // Gives the key a row; kNoRow: the table is full.
  int64_t Start(FreeRows* free, int64_t key, int64_t count) {
    const int64_t row = free->Next();
    if (row == kNoRow) return kNoRow;
    FreeRows::Unused unused(free, row);
    if (snapshot_ != nullptr) snapshot_->BeforeWrite(row);
    store_.Start(row, key, count, step_);
    table_.MarkBorn(row, step_);
    store_.SetMinute(row, minute_);
    const uint64_t hash = HostShards::HashOf(key);
    shard_.index.Insert(row, hash);
    shard_.ForgetCount(key, hash);
    unused.Keep();
    ++num_started_;
    return row;
  }

  int64_t RowOf(int64_t key) const { return shard_.index.Find(key, HostShards::HashOf(key)); }

  HostShards& table_;
  RowStore& store_;
  const TableKeys& keys_;
  HostShards::Shard& shard_;
  const int s_;
  const int64_t step_;
  const uint32_t minute_;  // of now; 0: the table keeps no time
  const std::shared_ptr<RowSnapshot> snapshot_;
  int64_t num_started_ = 0;                                      // rows
  int64_t num_found_ = 0, num_without_ = 0, num_in_memory_ = 0;  // ids, as of ShardUse
};

// Moves the rows of all keys that a tier below has into memory; the tier is locked.
inline Status PrefetchRows(const TableKeys& keys, TierBelowMemory* tier, Access access,
                           const ParallelFor& parallel_for) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int64_t> without[kNumShards];
  const int64_t cost = 20 * keys.NumKeys() / kNumShards + 100;
  parallel_for(kNumShards, cost, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      ShardTask(keys, static_cast<int>(s), -1).Use(tier, &without[s]);
    }
  });
  std::vector<int64_t> all;
  for (const auto& some : without) all.insert(all.end(), some.begin(), some.end());
  Status status = tier->PrefetchRowsOf(std::move(all), access, parallel_for);
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begin;
  if (keys.is_counted) keys.table->use().AddWait(waited.count());
  return status;
}

}  // namespace locate_rows
}  // namespace group_embedding
