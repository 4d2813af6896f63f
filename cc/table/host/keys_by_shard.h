// KeysByShard: the keys of a call, sorted by shard, in pieces that fit the cache. Each shard is one
// task, which takes the shard's lock once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "table/host/host_shards.h"

namespace group_embedding {

// Some keys. Once sorted, they may be overwritten.
class KeysByShard {
 public:
  static constexpr int64_t kMostKeys = 1 << 14;

  KeysByShard(const int64_t* keys, int64_t num_keys) : keys_(keys), num_keys_(num_keys) {}

  int64_t num_keys() const { return num_keys_; }
  int64_t num_keys(int s) const { return begins_[s + 1] - begins_[s]; }

  void Sort() {
    std::vector<uint8_t> shards(num_keys_);
    uint16_t next[kNumShards + 1] = {};
    for (int64_t i = 0; i < num_keys_; ++i) {
      shards[i] = static_cast<uint8_t>(HostShards::ShardIndex(HostShards::HashOf(keys_[i])));
      ++next[shards[i] + 1];
    }
    for (int s = 0; s < kNumShards; ++s) next[s + 1] += next[s];
    std::copy(next, next + kNumShards + 1, begins_);
    sorted_.resize(num_keys_);
    order_.resize(num_keys_);
    for (int64_t i = 0; i < num_keys_; ++i) {
      const uint16_t to = next[shards[i]]++;
      sorted_[to] = keys_[i];
      order_[to] = static_cast<uint16_t>(i);
    }
  }

  // visit(i, key, hash, probable_row) for the keys of shard s, in the order of i, their place
  // before they were sorted. To prefetch what it will need: ahead(i, hash) some keys before, and
  // some keys after that soon(hash), which returns the probable row.
  template <typename Ahead, typename Soon, typename Visit>
  void ForShard(int s, const Ahead& ahead, const Soon& soon, const Visit& visit) const {
    uint64_t hashes[kAhead];  // of the keys between the two, by their places modulo kAhead
    int64_t rows[kSoon];      // likewise
    const uint64_t begin = begins_[s], end = begins_[s + 1];
    uint64_t next = begin;
    auto look_ahead = [&] {
      const int64_t i = order_[next];
      ahead(i, hashes[next % kAhead] = HostShards::HashOf(sorted_[next]));
      ++next;
    };
    while (next < std::min(end, begin + kAhead)) look_ahead();
    for (uint64_t p = begin; p < std::min(end, begin + kSoon); ++p) {
      rows[p % kSoon] = soon(hashes[p % kAhead]);
    }
    for (uint64_t p = begin; p < end; ++p) {
      const uint64_t hash = hashes[p % kAhead];
      const int64_t row = rows[p % kSoon];
      if (next < end) look_ahead();
      if (p + kSoon < end) rows[p % kSoon] = soon(hashes[(p + kSoon) % kAhead]);
      visit(order_[p], sorted_[p], hash, row);
    }
  }

 private:
  static constexpr int kNumShards = HostShards::kNumShards;
  static constexpr uint64_t kAhead = 32, kSoon = 16;
  static_assert(kMostKeys <= 1 << 16 && kNumShards <= 1 << 8);

  const int64_t* keys_;
  int64_t num_keys_;
  // Shard s has places begins_[s] to begins_[s + 1] of these: its keys, and where they were.
  std::vector<int64_t> sorted_;
  std::vector<uint16_t> order_;
  uint16_t begins_[kNumShards + 1] = {};
};

}  // namespace group_embedding
