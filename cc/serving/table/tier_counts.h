// What a tiered table did since it was opened.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "serving/lower/latencies.h"

namespace group_embedding {

struct TierCounts {
  // Keys of answers: each is in one of the four.
  int64_t in_memory = 0;  // had a row in memory
  int64_t below = 0;      // had a row below
  int64_t absent = 0;     // were nowhere
  int64_t defaulted = 0;  // read what an absent key does, since the tier below failed

  int64_t fetched = 0;   // rows that came from below
  int64_t failures = 0;  // reads of the tier below that failed, but for:
  int64_t timeouts = 0;  // reads that were not done at the request's deadline
  int64_t evicted = 0;   // keys that left memory for others
  int64_t expired = 0;   // keys that left it since nobody asked for them
  int64_t cached = 0;    // rows of the base that are in memory now
  int64_t cached_bytes = 0;
};

// A count that many threads add to: each to a cache line that few others have.
class SharedCount {
 public:
  void Add(int64_t count) {
    if (count > 0) lines_[Mine()].count.fetch_add(count, std::memory_order_relaxed);
  }
  int64_t Total() const {
    int64_t total = 0;
    for (const Line& line : lines_) total += line.count.load(std::memory_order_relaxed);
    return total;
  }

 private:
  static constexpr size_t kLines = 16;
  struct alignas(64) Line {
    std::atomic<int64_t> count{0};
  };

  static size_t Mine() {
    static std::atomic<size_t> next{0};
    thread_local const size_t mine = next.fetch_add(1) % kLines;
    return mine;
  }

  std::array<Line, kLines> lines_;
};

}  // namespace group_embedding
