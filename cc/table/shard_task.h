// What locating on the host does with one shard of one table. The keys of a call are sorted by
// shard, in parts that fit the cache; then every shard is a task of its own, which takes its lock
// once.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "table/free_rows.h"
#include "table/host_shards.h"

namespace group_embedding {
namespace locate_rows {

constexpr int kNumShards = HostShards::kNumShards;
constexpr int64_t kPartKeys = 1 << 14;
constexpr int64_t kAhead = 12;  // keys between prefetching an entry and reading it

// Some keys of one request, by shard: those of shard s are at order[begins[s]] to
// order[begins[s + 1]].
struct Part {
  const int64_t* keys;
  int64_t* rows;
  const int64_t* times;  // how often each came; null: once
  int64_t num_keys;
  std::vector<int64_t> copy;  // of the keys, where the rows overwrite them
  std::vector<uint16_t> order;
  uint16_t begins[kNumShards + 1];

  void SortByShard() {
    if (rows == keys) {
      copy.assign(keys, keys + num_keys);
      keys = copy.data();
    }
    uint16_t next[kNumShards + 1] = {};
    for (int64_t i = 0; i < num_keys; ++i) ++next[ShardOf(i) + 1];
    for (int s = 0; s < kNumShards; ++s) next[s + 1] += next[s];
    std::copy(next, next + kNumShards + 1, begins);
    order.resize(num_keys);
    for (int64_t i = 0; i < num_keys; ++i) order[next[ShardOf(i)]++] = static_cast<uint16_t>(i);
  }
  int64_t TimesOf(int64_t i) const { return times == nullptr ? 1 : times[i]; }
  int ShardOf(int64_t i) const { return HostShards::ShardIndex(HostShards::HashOf(keys[i])); }
};
static_assert(kPartKeys <= 1 << 16);

// All parts of one table: its features may be several.
struct TableKeys {
  HostShards* table;
  std::vector<Part*> parts;
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

  // Marks rows as used, and appends the keys that have none in memory, each once.
  void Use(LowerTier* tier, std::vector<int64_t>* without) {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll([&](Part& part, int64_t i) { without->push_back(part.keys[i]); },
            [&](int64_t row) { tier->Use(row); });
    std::sort(without->begin(), without->end());
    without->erase(std::unique(without->begin(), without->end()), without->end());
  }

  void Read() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll([this](Part& part, int64_t i) { part.rows[i] = store_.DefaultRow(part.keys[i]); },
            [](int64_t) {});
  }

  // Counts keys without a row in the table's Bloom filter.
  void CountInBloom() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll(
        [this](Part& part, int64_t i) {
          table_.bloom().Add(HostShards::HashOf(part.keys[i]), part.TimesOf(i));
        },
        [](int64_t) {});
  }

  std::string Train() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    std::vector<Place> without, with;
    FindAll([&](Part& part, int64_t i) { without.push_back({&part, i}); },
            [this](int64_t row) { __builtin_prefetch(&store_.Info(row), 1, 3); }, &with);
    for (const Place& place : with) Touch(place.part->rows[place.i], place.times());
    if (without.empty()) return "";
    return table_.options().admission.kind == Admission::Kind::kAll ? AdmitAll(without)
                                                                    : AdmitOftenSeen(without);
  }

 private:
  // A lower tier leaves no more free rows than all shards need together.
  int64_t RowsAtOnce() const { return table_.lower_tier() == nullptr ? 64 : 1; }

  struct Place {
    Part* part;
    int64_t i;
    int64_t key() const { return part->keys[i]; }
    int64_t times() const { return part->TimesOf(i); }
  };

  // Writes the rows of keys that have one, and tells of both kinds.
  template <typename Without, typename With>
  void FindAll(const Without& without, const With& with, std::vector<Place>* found = nullptr) {
    for (Part* part : keys_.parts) {
      const uint16_t* order = part->order.data();
      const int64_t begin = part->begins[s_], end = part->begins[s_ + 1];
      for (int64_t p = begin; p < std::min(end, begin + kAhead); ++p) Prefetch(*part, order[p]);
      for (int64_t p = begin; p < end; ++p) {
        if (p + kAhead < end) Prefetch(*part, order[p + kAhead]);
        const int64_t i = order[p], key = part->keys[i];
        const KeyIndex::Entry* entry = shard_.index.Find(key, HostShards::HashOf(key));
        if (entry == nullptr || entry->state < 0) {
          without(*part, i);
          continue;
        }
        part->rows[i] = entry->state - 1;
        with(entry->state - 1);
        if (found != nullptr) found->push_back({part, i});
      }
    }
  }

  void Prefetch(const Part& part, int64_t i) {
    shard_.index.Prefetch(HostShards::HashOf(part.keys[i]));
  }

  void Touch(int64_t row, int64_t times) {
    if (snapshot_ != nullptr) snapshot_->BeforeWrite(row);
    RowInfo& info = store_.Info(row);
    info.count += times;
    info.version = step_;
    info.clock = store_.clock();
  }

  // Gives every key a row.
  std::string AdmitAll(const std::vector<Place>& places) {
    FreeRows free(store_, static_cast<int64_t>(places.size()), RowsAtOnce());
    for (const Place& place : places) {
      const int64_t key = place.key();
      const uint64_t hash = HostShards::HashOf(key);
      KeyIndex::Entry* entry = shard_.index.FindOrInsert(key, hash, HostShards::HashOf);
      if (entry->state == 0) {
        const int64_t row = free.Next();
        if (row == kNoRow) {  // the table is full: the key is left as if it had not come
          entry->state = -1;
          shard_.index.Erase(entry, HostShards::HashOf);
          continue;
        }
        Start(row, key, 0);
        entry->state = row + 1;
      }
      place.part->rows[place.i] = entry->state - 1;
      Touch(entry->state - 1, place.times());
    }
    return free.error();
  }

  // Gives a row to keys seen often enough. All occurrences are counted before any is decided.
  std::string AdmitOftenSeen(const std::vector<Place>& places) {
    const Admission& admission = table_.options().admission;
    const bool bloom = admission.kind == Admission::Kind::kBloom;
    if (!bloom) {
      for (const Place& place : places) {
        KeyIndex::Entry* entry = EntryOf(place.key());
        shard_.BeforeChange(place.key(), entry->state);
        entry->state -= place.times();
      }
    }
    FreeRows free(store_, static_cast<int64_t>(places.size()), RowsAtOnce());
    for (const Place& place : places) {
      const int64_t key = place.key();
      const uint64_t hash = HostShards::HashOf(key);
      const KeyIndex::Entry* entry = shard_.index.Find(key, hash);
      int64_t row = entry != nullptr && entry->state > 0 ? entry->state - 1 : kNoRow;
      const int64_t count = bloom ? table_.bloom().Count(hash) : -entry->state;
      if (row == kNoRow && count >= admission.min_count) {
        row = free.Next();
        if (row != kNoRow) {
          Start(row, key, count);
          EntryOf(key)->state = row + 1;
        }
      }
      place.part->rows[place.i] = row == kNoRow ? store_.DefaultRow(key) : row;
    }
    return free.error();
  }

  void Start(int64_t row, int64_t key, int64_t count) {
    if (snapshot_ != nullptr) snapshot_->BeforeWrite(row);
    store_.Start(row, key, count, step_);
    ++shard_.num_rows;
  }

  KeyIndex::Entry* EntryOf(int64_t key) {
    return shard_.index.FindOrInsert(key, HostShards::HashOf(key), HostShards::HashOf);
  }

  HostShards& table_;
  RowStore& store_;
  const TableKeys& keys_;
  HostShards::Shard& shard_;
  const int s_;
  const int64_t step_;
  const std::shared_ptr<RowSnapshot> snapshot_;
};

}  // namespace locate_rows
}  // namespace group_embedding
