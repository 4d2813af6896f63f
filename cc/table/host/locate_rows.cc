// Locating on the host: all shards of all tables of a call, as tasks (shard_task.h).
#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "table/host/shard_task.h"

namespace group_embedding {
namespace {

using namespace locate_rows;

// Makes others wait that locate keys of the same tables with a lower tier. `tables`: in an order
// that is the same for all.
template <typename Tables>
std::vector<std::unique_lock<std::mutex>> StartLocating(const Tables& tables) {
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& [table, index] : tables) {
    LowerTier* tier = table->lower_tier();
    if (tier != nullptr) locks.push_back(tier->StartLocating());
  }
  return locks;
}

int64_t NumKeys(const TableKeys& keys) {
  int64_t num_keys = 0;
  for (const Part* part : keys.parts) num_keys += part->keys.num_keys();
  return num_keys;
}

void Hold(const KeysToLocate* requests, int64_t num_requests) {
  for (int64_t r = 0; r < num_requests; ++r) {
    const KeysToLocate& request = requests[r];
    LowerTier* tier = static_cast<HostShards*>(request.table)->lower_tier();
    if (tier != nullptr) tier->Hold(request.rows, request.num_keys, request.batch);
  }
}

// Has a table without a lower tier free the rows that an eviction leaves, if keys may need them.
void MakeSpace(const TableKeys& keys, const ParallelFor& parallel_for) {
  const auto snapshot = keys.table->snapshot();
  if (snapshot == nullptr || !snapshot->evicts()) return;
  if (keys.table->store().NumFree() < NumKeys(keys)) keys.table->CompleteEviction(parallel_for);
}

// Brings the rows of all keys into memory, for a table with a lower tier.
std::string BringIn(const TableKeys& keys, LowerTier* tier, Access access,
                    const ParallelFor& parallel_for) {
  std::vector<int64_t> without[kNumShards];
  const int64_t num_keys = NumKeys(keys);
  parallel_for(kNumShards, 20 * num_keys / kNumShards + 100, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      ShardTask(keys, static_cast<int>(s), -1).Use(tier, &without[s]);
    }
  });
  std::vector<int64_t> all;
  for (const auto& some : without) all.insert(all.end(), some.begin(), some.end());
  return tier->BringIn(std::move(all), access, parallel_for);
}

}  // namespace

std::string LocateRowsCpu(const KeysToLocate* requests, int64_t num_requests, Access access,
                          int64_t step, const ParallelFor& parallel_for) {
  std::vector<Part> parts;
  std::vector<HostShards*> table_of_part;
  int64_t num_keys = 0;
  for (int64_t r = 0; r < num_requests; ++r) {
    const KeysToLocate& request = requests[r];
    num_keys += request.num_keys;
    constexpr int64_t kMost = KeysByShard::kMostKeys;
    for (int64_t begin = 0; begin < request.num_keys; begin += kMost) {
      const KeysByShard keys(request.keys + begin, std::min(kMost, request.num_keys - begin));
      const int64_t* times = request.times == nullptr ? nullptr : request.times + begin;
      int64_t* reads = request.reads == nullptr ? nullptr : request.reads + begin;
      parts.push_back({keys, request.rows + begin, times, reads});
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
    for (int64_t p = begin; p < end; ++p) parts[p].keys.Sort();
  });

  const auto locks = StartLocating(index_of);
  for (const TableKeys& keys : tables) {
    LowerTier* tier = keys.table->lower_tier();
    if (tier != nullptr) {
      std::string error = BringIn(keys, tier, access, parallel_for);
      if (!error.empty()) return error;
    } else if (access == Access::kTrain) {
      MakeSpace(keys, parallel_for);
    }
  }

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
    Hold(requests, num_requests);
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
  if (error.empty()) Hold(requests, num_requests);
  return error;
}

}  // namespace group_embedding
