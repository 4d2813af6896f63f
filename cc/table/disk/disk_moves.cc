// Rows of a table on their way between memory and disk.
#include <algorithm>
#include <array>
#include <exception>
#include <mutex>

#include "table/disk/disk_tiered_shards.h"

namespace group_embedding {
namespace {

constexpr int64_t kChunk = 1024;     // rows that one thread moves at a time
constexpr int64_t kRowCost = 5000;   // nanoseconds
constexpr int64_t kShareMoved = 16;  // of the rows in memory, one in so many makes space at once

// body(begin, end) on chunks of [0, count), on each of them even if others fail; returns the error
// of one that failed, or nothing.
template <typename Body>
Status ForChunks(int64_t count, const ParallelFor& parallel_for, const Body& body) {
  std::mutex mutex;
  Status status;
  auto chunks = [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      Status failed;
      try {
        failed = body(c * kChunk, std::min(count, (c + 1) * kChunk));
      } catch (const std::exception& exception) {  // such as of memory that has run out
        failed = exception.what();
      }
      if (failed.ok()) continue;
      std::lock_guard<std::mutex> lock(mutex);
      status = std::move(failed);
    }
  };
  parallel_for((count + kChunk - 1) / kChunk, kChunk * kRowCost, chunks);
  return status;
}

}  // namespace

std::unique_lock<std::mutex> DiskTieredShards::StartLocating() {
  std::unique_lock<std::mutex> lock(locating_);
  ++call_;
  return lock;
}

void DiskTieredShards::Hold(const int64_t* rows, int64_t num_rows, int64_t batch) {
  for (int64_t i = 0; i < num_rows; ++i) Use(rows[i]);
  if (batch == 0) return;
  std::lock_guard<std::mutex> lock(batches_mutex_);
  std::vector<int64_t>& held = rows_of_batch_[batch];
  held.insert(held.end(), rows, rows + num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    uses()[rows[i]].num_positions.fetch_add(1, std::memory_order_relaxed);
  }
}

void DiskTieredShards::EndBatch(int64_t batch) {
  {
    std::lock_guard<std::mutex> lock(batches_mutex_);
    const auto held = rows_of_batch_.find(batch);
    if (held != rows_of_batch_.end()) {
      for (const int64_t row : held->second) {
        uses()[row].num_positions.fetch_sub(1, std::memory_order_release);
      }
      rows_of_batch_.erase(held);
    }
  }
  HostShards::EndBatch(batch);
}

Status DiskTieredShards::PrefetchRowsOf(std::vector<int64_t> keys, Access access,
                                        const ParallelFor& parallel_for) {
  if (!disk_->failed().ok()) return disk_->failed();
  std::sort(keys.begin(), keys.end(), IsBeforeOnDisk);
  const int64_t num_keys = static_cast<int64_t>(keys.size());
  std::vector<FoundOnDisk> found((num_keys + kChunk - 1) / kChunk);
  Status status = ForChunks(num_keys, parallel_for, [&](int64_t begin, int64_t end) {
    FoundOnDisk* some = &found[begin / kChunk];
    const Status failed = disk_->Find(keys.data() + begin, end - begin, some);
    return failed.ok() ? disk_->EraseExpired(*some) : failed;
  });
  if (!status.ok()) return status;
  std::vector<int64_t> begins = {0};  // of each chunk's rows
  for (const FoundOnDisk& of : found) {
    begins.push_back(begins.back() + static_cast<int64_t>(of.keys.size()));
  }
  const int64_t num_found = begins.back();
  status = MakeSpace(access == Access::kTrain ? num_keys : num_found, num_found, parallel_for);
  if (!status.ok()) return status;
  std::vector<int64_t> rows;
  status = store().Take(num_found, &rows);
  if (!status.ok()) {
    for (const int64_t row : rows) store().Return(row);
    return status;
  }
  return ForChunks(num_keys, parallel_for, [&](int64_t begin, int64_t) {
    const int64_t chunk = begin / kChunk;
    return MoveUp(found[chunk], rows.data() + begins[chunk]);
  });
}

Status DiskTieredShards::MoveUp(const FoundOnDisk& found, const int64_t* rows) {
  const int64_t num_keys = static_cast<int64_t>(found.keys.size());
  if (num_keys == 0) return {};
  const int64_t bytes = disk_->layout().bytes();
  int64_t num_moved = 0;
  Status status;
  try {
    BeforeWrite(rows, num_keys);
    for (; num_moved < num_keys; ++num_moved) {
      const int64_t key = found.keys[num_moved], row = rows[num_moved];
      UnpackRow(store(), found.records.data() + num_moved * bytes, key, row);
      Use(row);
      const uint64_t hash = HashOf(key);
      Shard& shard = ShardOf(hash);
      std::lock_guard<std::mutex> lock(shard.mutex);
      shard.index.Insert(row, hash);
      shard.ForgetCount(key, hash);
      ++shard.num_rows;
    }
    status = disk_->Erase(found.keys);
  } catch (const std::exception& exception) {  // such as of memory that has run out
    status = exception.what();
  }
  if (status.ok()) return {};
  for (int64_t i = 0; i < num_keys; ++i) {  // the rows stay on disk
    if (i < num_moved) {
      LeaveMemory(found.keys[i], rows[i]);
    } else {
      store().infos().SetNoKeys(rows[i]);
      store().Return(rows[i]);
    }
  }
  return status;
}

void DiskTieredShards::LeaveMemory(int64_t key, int64_t row) {
  const uint64_t hash = HashOf(key);
  Shard& shard = ShardOf(hash);
  std::lock_guard<std::mutex> lock(shard.mutex);
  shard.index.Erase(row, hash);
  --shard.num_rows;
  store().infos().SetNoKeys(row);
  store().Return(row);
}

Status DiskTieredShards::MoveDown(const int64_t* rows, int64_t num_rows) {
  const int64_t bytes = disk_->layout().bytes();
  std::vector<int64_t> keys(num_rows);
  std::vector<char> records(num_rows * bytes);
  for (int64_t i = 0; i < num_rows; ++i) {
    keys[i] = store().infos().KeyOf(rows[i]);
    PackRow(store(), rows[i], records.data() + i * bytes);
  }
  BeforeWrite(rows, num_rows);
  Status status = disk_->Put(keys, records.data());
  if (!status.ok()) return status;
  for (int64_t i = 0; i < num_rows; ++i) LeaveMemory(keys[i], rows[i]);
  return {};
}

Status DiskTieredShards::MakeSpace(int64_t num_rows, int64_t num_leaving,
                                   const ParallelFor& parallel_for) {
  int64_t missing = num_rows - store().NumFree();
  if (missing > 0 && HostShards::CompleteEviction(parallel_for)) {
    missing = num_rows - store().NumFree();
  }
  if (missing <= 0) return {};
  const int64_t at_once = std::min(store().max_rows() / kShareMoved, disk_->NumFree(num_leaving));
  std::vector<int64_t> rows = RowsToMoveDown(std::max(missing, at_once));
  const int64_t num_cold = static_cast<int64_t>(rows.size());
  if (num_cold < missing) {
    return "table '" + options().name + "': expected a batch whose rows fit its memory beside " +
           "those of batches in flight, got " + std::to_string(missing - num_cold) +
           " rows too many: it has " + std::to_string(store().max_rows()) + " rows of " +
           std::to_string(store().BytesPerRow()) + " bytes (dim " + std::to_string(options().dim) +
           ", " + std::to_string(slots().size()) + " slots) in " +
           std::to_string(options().max_bytes) +
           " bytes; give it more (tier_bytes, or storage_size of a StorageOption), or smaller "
           "batches";
  }
  Status status = disk_->CheckSize(num_cold, num_leaving);
  if (!status.ok()) return status;
  std::sort(rows.begin(), rows.end(), [this](int64_t a, int64_t b) {
    return IsBeforeOnDisk(store().infos().KeyOf(a), store().infos().KeyOf(b));
  });
  return ForChunks(num_cold, parallel_for, [&](int64_t begin, int64_t end) {
    return MoveDown(rows.data() + begin, end - begin);
  });
}

std::vector<int64_t> DiskTieredShards::RowsToMoveDown(int64_t count) {
  std::vector<std::array<int64_t, 3>> rows;  // the colder, the smaller
  for (int64_t row = first_row(); row < store().num_rows(); ++row) {
    if (!store().IsKeys(row)) continue;
    if (IsUsed(row)) continue;
    const RowUse& use = uses()[row];
    const int64_t count = store().infos().CountOf(row);
    if (cache_strategy_ == CacheStrategy::kLeastFrequent) {
      rows.push_back({count, use.call, row});
    } else {
      rows.push_back({use.call, count, row});
    }
  }
  count = std::min(count, static_cast<int64_t>(rows.size()));
  std::nth_element(rows.begin(), rows.begin() + count, rows.end());
  std::vector<int64_t> chosen(count);
  for (int64_t i = 0; i < count; ++i) chosen[i] = rows[i][2];
  return chosen;
}

}  // namespace group_embedding
