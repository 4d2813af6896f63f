// Latencies of the last minute.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "serving/lower/latencies.h"

namespace group_embedding::server {

// What the live page shows.
struct RecentLatency {
  double requests_per_second = 0;
  double p50_seconds = 0, p99_seconds = 0;  // 0 without requests
};

// The latencies of the last minute, in slots of ten seconds. Thread-safe; a request that ends while
// its slot is cleared may be left out.
class RecentLatencies {
 public:
  using Clock = std::chrono::steady_clock;

  void Add(double seconds) {
    const int64_t now = Tick();
    Slot& slot = slots_[now % kSlots];
    if (slot.tick.load(std::memory_order_acquire) != now) StartSlot(slot, now);
    slot.latencies.Add(seconds);
  }

  RecentLatency Summary() const {
    const int64_t now = Tick();
    std::array<int64_t, Latencies::kBuckets> counts{};
    int64_t total = 0;
    for (const Slot& slot : slots_) {
      const int64_t tick = slot.tick.load(std::memory_order_acquire);
      if (tick < 0 || tick <= now - kSlots) continue;
      for (int b = 0; b < Latencies::kBuckets; ++b) counts[b] += slot.latencies[b];
    }
    for (const int64_t count : counts) total += count;
    RecentLatency recent;
    if (total == 0) return recent;
    const double age = std::chrono::duration<double>(Clock::now() - start_).count();
    const double in_slot = std::fmod(age, kSlotSeconds);
    recent.requests_per_second =
        total / std::max(1.0, std::min(age, (kSlots - 1) * kSlotSeconds + in_slot));
    recent.p50_seconds = Quantile(counts, total, 0.50);
    recent.p99_seconds = Quantile(counts, total, 0.99);
    return recent;
  }

 private:
  static constexpr int kSlots = 6;
  static constexpr double kSlotSeconds = 10;

  struct Slot {
    std::atomic<int64_t> tick{-1};
    std::mutex mutex;
    Latencies latencies;
  };

  int64_t Tick() const {
    return static_cast<int64_t>(std::chrono::duration<double>(Clock::now() - start_).count() /
                                kSlotSeconds);
  }

  void StartSlot(Slot& slot, int64_t tick) {
    std::lock_guard<std::mutex> lock(slot.mutex);
    if (slot.tick.load(std::memory_order_relaxed) >= tick) return;
    slot.latencies.Clear();
    slot.tick.store(tick, std::memory_order_release);
  }

  static double Quantile(const std::array<int64_t, Latencies::kBuckets>& counts, int64_t total,
                         double quantile) {
    int64_t seen = 0;
    for (int b = 0; b < Latencies::kBuckets; ++b) {
      seen += counts[b];
      if (seen >= quantile * total) return Latencies::SecondsOf(b);
    }
    return Latencies::SecondsOf(Latencies::kBuckets - 1);
  }

  const Clock::time_point start_ = Clock::now();
  std::array<Slot, kSlots> slots_;
};

}  // namespace group_embedding::server
