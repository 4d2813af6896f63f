// Latencies: counts of durations in buckets.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>

namespace group_embedding {

// Buckets whose bounds rise by 2^(1/8), 9%, from 1 us to 134 s. Thread-safe.
class Latencies {
 public:
  static constexpr int kPerDoubling = 8;
  static constexpr int kBuckets = 27 * kPerDoubling + 1;

  static int BucketOf(double seconds) {
    const double bucket = std::ceil(std::log2(std::max(seconds, 1e-6) * 1e6) * kPerDoubling);
    return std::min(static_cast<int>(bucket), kBuckets - 1);
  }
  // The upper bound of a bucket.
  static double SecondsOf(int bucket) {
    return 1e-6 * std::exp2(static_cast<double>(bucket) / kPerDoubling);
  }

  void Add(double seconds) { counts_[BucketOf(seconds)].fetch_add(1, std::memory_order_relaxed); }
  // How many are in this bucket and the seven before it.
  int64_t UpTo(int bucket) const {
    int64_t count = 0;
    for (int b = std::max(bucket - kPerDoubling + 1, 0); b <= bucket; ++b) count += (*this)[b];
    return count;
  }
  // Seconds of all, each at the upper bound of its bucket.
  double Sum() const {
    double sum = 0;
    for (int b = 0; b < kBuckets; ++b) sum += (*this)[b] * SecondsOf(b);
    return sum;
  }
  int64_t operator[](int bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  void Clear() {
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<int64_t>, kBuckets> counts_{};
};

}  // namespace group_embedding
