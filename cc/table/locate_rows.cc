// Locating on the host. The keys of a call are sorted by shard, in parts that fit the cache; then
// every shard of every table is a task of its own, which takes the shard's lock once.
#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "table/host_shards.h"

namespace group_embedding {
namespace {

constexpr int kNumShards = HostShards::kNumShards;
constexpr int64_t kPartKeys = 1 << 14;
constexpr int64_t kAhead = 12;  // keys between prefetching an entry and reading it

// Some keys of one request, by shard: those of shard s are at order[begins[s]] to
// order[begins[s + 1]].
struct Part {
  const int64_t* keys;
  int64_t* rows;
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
  int ShardOf(int64_t i) const { return HostShards::ShardIndex(HostShards::HashOf(keys[i])); }
};
static_assert(kPartKeys <= 1 << 16);

// All parts of one table: its features may be several.
struct TableKeys {
  HostShards* table;
  std::vector<Part*> parts;
};

// Free rows, taken a few at a time; those that are left go back.
class FreeRows {
 public:
  FreeRows(RowStore& store, int64_t most) : store_(store), left_(most) {}
  ~FreeRows() {
    for (const int64_t row : rows_) store_.Return(row);
  }

  // kNoRow: there are none; error() says why.
  int64_t Next() {
    if (rows_.empty() && error_.empty()) {
      error_ = store_.Take(std::min<int64_t>(left_, kAtOnce), &rows_);
      // The lowest row first, so that rows are written one after the other.
      std::reverse(rows_.begin(), rows_.end());
    }
    if (rows_.empty()) return kNoRow;
    --left_;
    const int64_t row = rows_.back();
    rows_.pop_back();
    return row;
  }
  const std::string& error() const { return error_; }

 private:
  static constexpr int64_t kAtOnce = 64;
  RowStore& store_;
  int64_t left_;
  std::vector<int64_t> rows_;
  std::string error_;
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

  void Read() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll([this](Part& part, int64_t i) { part.rows[i] = store_.DefaultRow(part.keys[i]); },
            [](int64_t) {});
  }

  // Counts keys without a row in the table's Bloom filter.
  void CountInBloom() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    FindAll([this](Part& part, int64_t i) { table_.bloom().Add(HostShards::HashOf(part.keys[i])); },
            [](int64_t) {});
  }

  std::string Train() {
    std::lock_guard<std::mutex> lock(shard_.mutex);
    std::vector<Place> without, with;
    FindAll([&](Part& part, int64_t i) { without.push_back({&part, i}); },
            [this](int64_t row) { __builtin_prefetch(&store_.Info(row), 1, 3); }, &with);
    for (const Place& place : with) Touch(place.part->rows[place.i]);
    if (without.empty()) return "";
    return table_.options().admission.kind == Admission::Kind::kAll ? AdmitAll(without)
                                                                    : AdmitOftenSeen(without);
  }

 private:
  struct Place {
    Part* part;
    int64_t i;
    int64_t key() const { return part->keys[i]; }
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

  void Touch(int64_t row) {
    if (snapshot_ != nullptr) snapshot_->BeforeWrite(row);
    RowInfo& info = store_.Info(row);
    ++info.count;
    info.version = step_;
    info.clock = store_.clock();
  }

  // Gives every key a row.
  std::string AdmitAll(const std::vector<Place>& places) {
    FreeRows free(store_, static_cast<int64_t>(places.size()));
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
      Touch(entry->state - 1);
    }
    return free.error();
  }

  // Gives a row to keys seen often enough. All occurrences are counted before any is decided.
  std::string AdmitOftenSeen(const std::vector<Place>& places) {
    const Admission& admission = table_.options().admission;
    const bool bloom = admission.kind == Admission::Kind::kBloom;
    if (!bloom) {
      for (const Place& place : places) --EntryOf(place.key())->state;
    }
    FreeRows free(store_, static_cast<int64_t>(places.size()));
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

}  // namespace

std::string LocateRowsCpu(const KeysToLocate* requests, int64_t num_requests, Access access,
                          int64_t step, const ParallelFor& parallel_for) {
  std::vector<Part> parts;
  std::vector<HostShards*> table_of_part;
  int64_t num_keys = 0;
  for (int64_t r = 0; r < num_requests; ++r) {
    const KeysToLocate& request = requests[r];
    num_keys += request.num_keys;
    for (int64_t begin = 0; begin < request.num_keys; begin += kPartKeys) {
      const int64_t count = std::min(kPartKeys, request.num_keys - begin);
      parts.push_back({request.keys + begin, request.rows + begin, count, {}, {}, {}});
      table_of_part.push_back(static_cast<HostShards*>(request.table));
    }
  }
  std::map<HostShards*, int64_t> index_of;
  std::vector<TableKeys> tables;
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto [at, is_new] = index_of.try_emplace(table_of_part[p], tables.size());
    if (is_new) tables.push_back({table_of_part[p], {}});
    tables[at->second].parts.push_back(&parts[p]);
  }
  const int64_t num_parts = static_cast<int64_t>(parts.size());
  parallel_for(num_parts, 4 * num_keys / (num_parts + 1), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) parts[p].SortByShard();
  });

  const int64_t num_tasks = static_cast<int64_t>(tables.size()) * kNumShards;
  const int64_t cost = 20 * num_keys / (num_tasks + 1) + 100;
  std::mutex mutex;
  std::string error;
  auto for_shards = [&](const auto& body) {
    parallel_for(num_tasks, cost, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const TableKeys& keys = tables[t / kNumShards];
        body(ShardTask(keys, static_cast<int>(t % kNumShards), step), keys);
      }
    });
  };
  if (access == Access::kRead) {
    for_shards([](ShardTask&& task, const TableKeys&) { task.Read(); });
    return "";
  }
  auto has_bloom = [](const TableKeys& keys) {
    return keys.table->options().admission.kind == Admission::Kind::kBloom;
  };
  if (std::any_of(tables.begin(), tables.end(), has_bloom)) {
    for_shards([&](ShardTask&& task, const TableKeys& keys) {
      if (has_bloom(keys)) task.CountInBloom();
    });
  }
  for_shards([&](ShardTask&& task, const TableKeys&) {
    std::string failed = task.Train();
    if (failed.empty()) return;
    std::lock_guard<std::mutex> lock(mutex);
    error = std::move(failed);
  });
  return error;
}

}  // namespace group_embedding
