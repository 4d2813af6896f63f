// Rows that are given to keys from outside: inserted by the user, or restored.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/prefetch.h"
#include "table/check_table.h"
#include "table/free_rows.h"
#include "table/host/host_shards.h"
#include "table/host/keys_by_shard.h"
#include "table/no_memory.h"

namespace group_embedding {
namespace {

constexpr int64_t kInsertNanoseconds = 100;  // a key, about
constexpr int64_t kLine = 64;

std::vector<KeysByShard> SortKeys(const KeyedRowsView& rows, const ParallelFor& parallel_for) {
  constexpr int64_t kMost = KeysByShard::kMostKeys;
  std::vector<KeysByShard> parts;
  for (int64_t begin = 0; begin < rows.num_keys; begin += kMost) {
    parts.emplace_back(rows.keys + begin, std::min(kMost, rows.num_keys - begin));
  }
  parallel_for(static_cast<int64_t>(parts.size()), 4 * kMost, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) parts[p].Sort();
  });
  return parts;
}

}  // namespace

// Inserts keys of one shard, whose lock it has.
class HostShards::Inserter {
 public:
  // At most `most` keys.
  Inserter(HostShards* table, const KeyedRowsView& rows, Shard* shard, int64_t most)
      : store_(table->store_),
        rows_(rows),
        shard_(*shard),
        lock_(shard->mutex),
        snapshot_(table->snapshot()),
        free_(store_, most) {}
  // Counted at once: an atomic addition per key waits for all that is being written.
  ~Inserter() { shard_.num_rows += num_new_; }

  void Prefetch(int64_t i, uint64_t hash) const {
    shard_.index.Prefetch(hash);
    const char* values = rows_.values + i * store_.row_bytes();
    for (int64_t at = 0; at < store_.row_bytes(); at += kLine) {
      group_embedding::Prefetch(values + at);
    }
  }

  int64_t PrefetchInfo(uint64_t hash) const { return shard_.index.PrefetchInfo(hash); }

  // False: the table is full, and the key is left as it was.
  bool Insert(int64_t i, int64_t key, uint64_t hash, int64_t probable_row) {
    if (const int64_t row = shard_.index.Find(key, hash, probable_row); row != kNoRow) {
      Fill(row, /*is_new=*/false, i, key);
      return true;
    }
    const int64_t row = free_.Next();
    if (row == kNoRow) return false;
    FreeRows::Unused unused(&free_, row);
    Fill(row, /*is_new=*/true, i, key);
    shard_.index.Insert(row, hash);
    shard_.ForgetCount(key, hash);
    unused.Keep();
    ++num_new_;
    return true;
  }

  const Status& status() const { return free_.status(); }

 private:
  // Gives a row the content that there is for key i. `is_new`: it was no key's.
  void Fill(int64_t row, bool is_new, int64_t i, int64_t key) {
    if (snapshot_ != nullptr) snapshot_->BeforeWrite(row);
    RowInfo kept = is_new ? RowInfo{0, 0, -1, 0} : store_.infos().Info(row);
    if (rows_.counts != nullptr) {
      kept.count = std::min(rows_.counts[i], kMaxCount);
      kept.version = rows_.versions[i];
    }
    store_.StartAllButValues(row, key, kept.count, kept.version);
    const int64_t bytes = store_.row_bytes();
    std::memcpy(store_.Row(row), rows_.values + i * bytes, bytes);
    for (size_t s = 0; s < rows_.slots.size(); ++s) {
      const int64_t slot_bytes = store_.slot_row_bytes(s);
      if (rows_.slots[s] == nullptr) continue;
      std::memcpy(store_.SlotRow(s, row), rows_.slots[s] + i * slot_bytes, slot_bytes);
    }
  }

  RowStore& store_;
  const KeyedRowsView& rows_;
  Shard& shard_;
  const std::lock_guard<std::mutex> lock_;
  const std::shared_ptr<RowSnapshot> snapshot_;
  FreeRows free_;
  int64_t num_new_ = 0;  // keys that have a row now and had none
};

Status HostShards::Insert(const KeyedRowsView& given, const ParallelFor& parallel_for) {
  Status status = CheckCounts(options(), given);
  if (!status.ok()) return status;
  CompleteEviction(parallel_for);
  KeyedRows kept;
  bool is_changed;
  status = FitIntoBudget(given, &kept, &is_changed);
  if (!status.ok()) return status;
  const KeyedRowsView rows = is_changed ? KeyedRowsView(kept) : given;
  const TableBatch batch(this);  // what it writes has changed since any snapshot
  const std::vector<KeysByShard> parts = SortKeys(rows, parallel_for);
  const int64_t cost = kInsertNanoseconds * (rows.num_keys / kNumShards + 1);
  std::mutex mutex;
  parallel_for(kNumShards, cost, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      Status failed =
          CatchNoMemory(options(), [&] { return InsertInShard(rows, parts, static_cast<int>(s)); });
      if (failed.ok()) continue;
      std::lock_guard<std::mutex> lock(mutex);
      status = std::move(failed);
    }
  });
  store_.EndCall();
  return status;
}

// In the order of the keys, so that of one that comes twice the last row holds.
Status HostShards::InsertInShard(const KeyedRowsView& rows, const std::vector<KeysByShard>& parts,
                                 int s) {
  int64_t num_keys = 0;
  for (const KeysByShard& part : parts) num_keys += part.num_keys(s);
  Inserter inserter(this, rows, &shards_[s], num_keys);
  bool all = true;
  int64_t first = 0;  // of the part
  for (const KeysByShard& part : parts) {
    part.ForShard(
        s, [&](int64_t i, uint64_t hash) { inserter.Prefetch(first + i, hash); },
        [&](uint64_t hash) { return inserter.PrefetchInfo(hash); },
        [&](int64_t i, int64_t key, uint64_t hash, int64_t probable_row) {
          all = all && inserter.Insert(first + i, key, hash, probable_row);
        });
    first += part.num_keys();
  }
  return all ? Status() : inserter.status();
}

Status HostShards::InsertOne(const KeyedRowsView& rows, int64_t i) {
  const uint64_t hash = HashOf(rows.keys[i]);
  Inserter inserter(this, rows, &ShardOf(hash), 1);
  return inserter.Insert(i, rows.keys[i], hash, /*probable_row=*/0) ? Status() : inserter.status();
}

}  // namespace group_embedding
