// LowestKeys: the keys of a table that go first, found in one pass in any order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "table/budget.h"

namespace group_embedding {

struct EvictionCandidate {
  EvictionOrder order;
  int64_t key, row;  // row: kNoRow for a key below memory
};

inline bool operator<(const EvictionCandidate& a, const EvictionCandidate& b) {
  return a.order < b.order;
}

// The `count` lowest of all candidates that are added. Memory: for 2 count + kSlack of them.
// Several threads may add at a time.
class LowestKeys {
 public:
  static constexpr int64_t kSlack = 1 << 14;

  // first_bound: candidates that are not below it are not to be found.
  explicit LowestKeys(int64_t count, const EvictionOrder& first_bound = kLast)
      : count_(count), bound_(first_bound) {}

  static constexpr EvictionOrder kLast = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};

  // No candidate that is not below it can be among the lowest; of those known by now.
  EvictionOrder bound() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return bound_;
  }
  void Add(const std::vector<EvictionCandidate>& candidates) {
    if (candidates.empty() || count_ == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    lowest_.insert(lowest_.end(), candidates.begin(), candidates.end());
    if (static_cast<int64_t>(lowest_.size()) >= 2 * count_ + kSlack) Shrink();
  }
  // In no order.
  std::vector<EvictionCandidate> Take() {
    Shrink();
    return std::move(lowest_);
  }

 private:
  void Shrink() {
    if (static_cast<int64_t>(lowest_.size()) <= count_) return;
    std::nth_element(lowest_.begin(), lowest_.begin() + count_ - 1, lowest_.end());
    lowest_.resize(count_);
    bound_ = lowest_.back().order;
  }

  const int64_t count_;
  mutable std::mutex mutex_;
  std::vector<EvictionCandidate> lowest_;
  EvictionOrder bound_;
};

// For each share of a budget; null: nothing is to be found.
using LowestOfShares = std::vector<std::unique_ptr<LowestKeys>>;

}  // namespace group_embedding
