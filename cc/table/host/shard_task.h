// ShardTask: locates the keys of a call that belong to one shard of a table in host memory.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/status.h"
#include "table/free_rows.h"
#include "table/host/host_shards.h"
#include "table/host/keys_by_shard.h"

namespace group_embedding {
namespace locate_rows {

constexpr int kNumShards = HostShards::kNumShards;

// Some keys of one request.
struct KeyChunk {
  KeysByShard keys;
  int64_t* rows;
  const int64_t* times;  // how often each came; null: once
  int64_t* reads;        // as of KeysToLocate

  int64_t TimesOf(int64_t i) const { return times == nullptr ? 1 : times[i]; }
};

// All keys of one table: its features may be several.
struct TableKeys {
  HostShards* table;
  std::vector<KeyChunk> chunks;
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
        snapshot_(table_.snapshot()) {}
  // Counted at once: an atomic addition per key waits for all that is being written.
  ~ShardTask() { shard_.num_rows += num_started_; }
  ShardTask(const ShardTask&) = delete;
  ShardTask& operator=(const ShardTask&) = delete;

  // Marks rows as used, and appends the keys that have none in memory, each once.
  void Use(TierBelowMemory* tier, std::vector<int64_t>* without) {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll([&](const Occurrence& seen) { without->push_back(seen.key); },
            [&](const Occurrence& seen) { tier->Use(seen.row()); });
    std::sort(without->begin(), without->end());
    without->erase(std::unique(without->begin(), without->end()), without->end());
  }

  void Read() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll([this](const Occurrence& seen) { seen.SetRow(store_.DefaultRow(seen.key)); },
            [](const Occurrence& seen) { seen.SetRow(seen.row()); });
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
    std::vector<Occurrence> without, with;
    FindAll([&](const Occurrence& seen) { without.push_back(seen); },
            [&](const Occurrence& seen) {
              __builtin_prefetch(&store_.Info(seen.row()), 1, 3);
              with.push_back(seen);
            });
    for (const Occurrence& seen : with) {
      Touch(seen.row(), seen.times());
      seen.SetRow(seen.row());
    }
    if (without.empty()) return {};
    const bool all = table_.options().admission.kind == Admission::Kind::kAll;
    return all ? AdmitAll(without) : AdmitOftenSeen(without);
  }

 private:
  // A lower tier leaves no more free rows than all shards need together.
  int64_t RowsAtOnce() const { return table_.lower_tier() == nullptr ? 64 : 1; }

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

  // Writes the rows of keys that have one, and tells of both kinds.
  template <typename Without, typename With>
  void FindAll(const Without& without, const With& with) {
    if (snapshot_ != nullptr && snapshot_->evicts()) return FindAllButEvicted(without, with);
    FindInIndex(without, with);
  }

  template <typename Without, typename With>
  void FindInIndex(const Without& without, const With& with) {
    for (const KeyChunk& chunk : keys_.chunks) {
      auto find = [&](int64_t i, int64_t key, uint64_t hash) {
        const KeyIndex::Entry* entry = shard_.index.Find(key, hash);
        if (entry == nullptr || entry->state < 0) return without({&chunk, i, key});
        chunk.rows[i] = entry->state - 1;
        with({&chunk, i, key});
      };
      chunk.keys.ForShard(
          s_, [this](int64_t, uint64_t hash) { shard_.index.Prefetch(hash); }, find);
    }
  }

  // As FindInIndex, during an eviction: an evicted key that is found is removed from the index.
  template <typename Without, typename With>
  void FindAllButEvicted(const Without& without, const With& with) {
    std::vector<Occurrence> all;
    FindInIndex(without, [&](const Occurrence& seen) {
      __builtin_prefetch(&store_.Info(seen.row()), 0, 3);
      all.push_back(seen);
    });
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
    RowInfo& info = store_.Info(row);
    info.count = AddToCount(info.count, times);
    info.version = step_;
    info.clock = store_.clock();
  }

  static int64_t AddToCount(int64_t count, int64_t times) {
    return times < kMaxCount - count ? count + times : kMaxCount;
  }

  // Gives every key a row.
  Status AdmitAll(const std::vector<Occurrence>& occurrences) {
    FreeRows free(store_, static_cast<int64_t>(occurrences.size()), RowsAtOnce());
    for (const Occurrence& seen : occurrences) {
      const KeyIndex::Entry* entry = EntryOf(seen.key);
      if (entry == nullptr) entry = Start(&free, seen.key, 0);
      if (entry == nullptr) continue;  // the table is full: the key is left as if it had not come
      seen.SetRow(entry->state - 1);
      Touch(entry->state - 1, seen.times());
    }
    return free.status();
  }

  // Gives a row to keys seen often enough. All occurrences are counted before any is decided. As no
  // key had a row before the call, all are read as keys without one.
  Status AdmitOftenSeen(const std::vector<Occurrence>& occurrences) {
    const Admission& admission = table_.options().admission;
    const bool bloom = admission.kind == Admission::Kind::kBloom;
    if (!bloom) {
      for (const Occurrence& seen : occurrences) Count(seen.key, seen.times());
    }
    FreeRows free(store_, static_cast<int64_t>(occurrences.size()), RowsAtOnce());
    for (const Occurrence& seen : occurrences) {
      const int64_t key = seen.key, read = store_.DefaultRow(key);
      const KeyIndex::Entry* entry = EntryOf(key);
      if (entry == nullptr || entry->state < 0) {
        const int64_t count = bloom ? table_.bloom().Count(HostShards::HashOf(key)) : -entry->state;
        entry = count < admission.min_count ? nullptr : Start(&free, key, count);
      }
      seen.SetRow(entry == nullptr ? read : entry->state - 1, read);
    }
    return free.status();
  }

  void Count(int64_t key, int64_t times) {
    const KeyIndex::Entry* entry = EntryOf(key);
    const int64_t state = entry == nullptr ? 0 : entry->state;
    shard_.BeforeChange(key, state);
    SetState(key, -AddToCount(-state, times));
  }

  // Gives the key a row; null: the table is full.
  const KeyIndex::Entry* Start(FreeRows* free, int64_t key, int64_t count) {
    const int64_t row = free->Next();
    if (row == kNoRow) return nullptr;
    FreeRows::Unused unused(free, row);
    if (snapshot_ != nullptr) snapshot_->BeforeWrite(row);
    store_.Start(row, key, count, step_);
    const KeyIndex::Entry* entry = SetState(key, row + 1);
    unused.Keep();
    ++num_started_;
    return entry;
  }

  KeyIndex::Entry* EntryOf(int64_t key) { return shard_.index.Find(key, HostShards::HashOf(key)); }
  KeyIndex::Entry* SetState(int64_t key, int64_t state) {
    KeyIndex::Entry* entry =
        shard_.index.FindOrInsert(key, HostShards::HashOf(key), HostShards::HashOf);
    entry->state = state;
    return entry;
  }

  HostShards& table_;
  RowStore& store_;
  const TableKeys& keys_;
  HostShards::Shard& shard_;
  const int s_;
  const int64_t step_;
  const std::shared_ptr<RowSnapshot> snapshot_;
  int64_t num_started_ = 0;  // rows
};

}  // namespace locate_rows
}  // namespace group_embedding
