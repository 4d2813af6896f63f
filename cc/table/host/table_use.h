// TableUse: counts what a table in host memory is asked for. Tasks count in variables of their own,
// and add them up once a shard and call.
//
// How ids repeat is sampled: one call in kSampleEvery counts the keys of one shard, another one
// each time. As a key's hash chooses its shard, the shards' shares are those of all keys.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "table/use_counts.h"

namespace group_embedding {

// What tasks of a shard found.
struct ShardUse {
  std::atomic<int64_t> num_found{0}, num_without{0};  // ids with a row, and without
  std::atomic<int64_t> num_in_memory{0};              // ids with a row above a tier below
  std::atomic<int64_t> num_admitted{0};               // keys

  static void Add(int64_t count, std::atomic<int64_t>* to) {
    if (count != 0) to->fetch_add(count, std::memory_order_relaxed);
  }
};

// The keys of one shard in one call.
struct KeySample {
  int64_t num_ids = 0, num_keys = 0;  // ids, and different keys
  int64_t most = 0;                   // ids of one key
};

template <int kNumShards>
class TableUse {
 public:
  static constexpr int kSampleEvery = 8;
  static constexpr int kNoShard = -1;

  // A call begins: the shard whose keys it is to sample, or kNoShard.
  int BeginCall() {
    const uint64_t call = num_calls_.fetch_add(1, std::memory_order_relaxed);
    return call % kSampleEvery != 0 ? kNoShard : static_cast<int>(call / kSampleEvery % kNumShards);
  }

  // call_ids: of all shards.
  void SetSample(int shard, const KeySample& sample, int64_t call_ids) {
    std::lock_guard<std::mutex> lock(mutex_);
    samples_[shard] = {sample, static_cast<double>(sample.most) / std::max<int64_t>(1, call_ids)};
  }

  void AddExpired(const ExpiredCounts& counts) {
    std::lock_guard<std::mutex> lock(mutex_);
    expired_ += counts;
  }
  void AddWait(int64_t nanoseconds) { ShardUse::Add(nanoseconds, &wait_nanoseconds_); }

  void AddTo(UseCounts* counts) const {
    counts->wait_nanoseconds += wait_nanoseconds_;
    std::lock_guard<std::mutex> lock(mutex_);
    counts->expired += expired_;
    for (const auto& [sample, share] : samples_) {
      counts->num_sampled_ids += sample.num_ids;
      counts->num_sampled_keys += sample.num_keys;
      counts->hottest_share = std::max(counts->hottest_share, share);
    }
  }

 private:
  struct ShareOfCall {
    KeySample sample;
    double hottest = 0;  // its share of the ids of the call
  };

  std::atomic<uint64_t> num_calls_{0};
  std::atomic<int64_t> wait_nanoseconds_{0};
  mutable std::mutex mutex_;  // of what follows
  ExpiredCounts expired_;
  std::array<ShareOfCall, kNumShards> samples_;
};

}  // namespace group_embedding
