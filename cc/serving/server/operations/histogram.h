// Counts of values in exponential buckets, as TensorFlow's metrics have them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace group_embedding::server {

// The upper bounds are `first`, `first * growth`, and so on; the last bucket has what is larger.
// Thread-safe.
template <size_t kBounds>
class Histogram {
 public:
  Histogram(double first, double growth) {
    for (double& bound : bounds_) {
      bound = first;
      first *= growth;
    }
  }

  void Add(double value) {
    size_t b = 0;
    while (b < kBounds && value > bounds_[b]) ++b;
    counts_[b].fetch_add(1, std::memory_order_relaxed);
    double sum = sum_.load(std::memory_order_relaxed);
    while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
    }
  }

  const std::array<double, kBounds>& bounds() const { return bounds_; }
  // The count of bucket b; kBounds is the last one.
  int64_t count(size_t b) const { return counts_[b].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::array<double, kBounds> bounds_;
  std::array<std::atomic<int64_t>, kBounds + 1> counts_{};
  std::atomic<double> sum_{0};
};

}  // namespace group_embedding::server
