// EvictedRows: keys that a table has evicted, and their rows, until someone takes them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#include "table/keyed_rows.h"

namespace group_embedding {

// Thread-safe: a batch evicts for its new keys while the reader of a snapshot evicts as of the
// snapshot's instant.
class EvictedRows {
 public:
  // row_bytes: of the values that are kept of a key; 0: its row is not handed out.
  explicit EvictedRows(int64_t row_bytes) : row_bytes_(row_bytes) {}

  // From now on at most so many keys wait to be taken; others are missed.
  void SetLimit(int64_t max_keys) { max_keys_ = max_keys; }

  // An eviction of about `more` keys begins. Where more than `most` wait, these are missed: all
  // that wait if `most` is negative.
  void MakePlace(int64_t most, int64_t more) {
    std::lock_guard<std::mutex> lock(mutex_);
    MissBeyond(most);
    const auto num_keys = static_cast<size_t>(std::min(size() + more, max_keys_.load()));
    for (auto* part : {&rows_.keys, &rows_.counts, &rows_.versions}) part->reserve(num_keys);
    rows_.values.reserve(num_keys * row_bytes_);
  }

  // An eviction begins in which perhaps no key goes. Where more than `most` wait once one goes,
  // those that wait are missed.
  void MakePlaceOnceAnyGoes(int64_t most) {
    std::lock_guard<std::mutex> lock(mutex_);
    most_at_next_ = most;
  }

  // A key goes. One for which there is no memory is missed.
  void Add(int64_t key, int64_t count, int64_t version, const char* values) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    MissBeyond(std::exchange(most_at_next_, kAny));
    const auto num_keys = static_cast<size_t>(size());
    if (size() >= max_keys_) {
      ++num_missed_;
      return;
    }
    try {
      rows_.values.insert(rows_.values.end(), values, values + row_bytes_);
      rows_.counts.push_back(count);
      rows_.versions.push_back(version);
      rows_.keys.push_back(key);
    } catch (const std::bad_alloc&) {
      rows_.values.resize(num_keys * row_bytes_);
      rows_.counts.resize(num_keys);
      rows_.versions.resize(num_keys);
      ++num_missed_;
    }
  }

  // All that wait are missed.
  void Drop() {
    std::lock_guard<std::mutex> lock(mutex_);
    MissBeyond(-1);
  }

  KeyedRows Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(rows_, {});
  }

  int64_t num_missed() const { return num_missed_; }

 private:
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

  int64_t size() const { return static_cast<int64_t>(rows_.keys.size()); }
  void MissBeyond(int64_t most) {
    if (size() <= most) return;
    num_missed_ += size();
    rows_ = {};
  }

  const int64_t row_bytes_;
  std::atomic<int64_t> max_keys_{kAny};
  std::atomic<int64_t> num_missed_{0};
  std::mutex mutex_;
  int64_t most_at_next_ = kAny;  // of MakePlaceOnceAnyGoes
  KeyedRows rows_;
};

}  // namespace group_embedding
