// LargePageVariables: moves the variables that a kernel reads or writes into large pages, once.
// TensorFlow allocates them in small pages, and a row at random then waits for the translation of
// its address as long as for its content.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "table/large_pages.h"

namespace group_embedding {

// A kernel has one, which any number of its calls use at the same time.
class LargePageVariables {
 public:
  // `count`: of the kernel's variables.
  explicit LargePageVariables(size_t count = 0) : seen_(std::make_unique<Seen[]>(count)) {}

  // Moves variable `i`, whose buffer is in host memory. Does nothing if the buffer is that of the
  // last call, or if the variable has had kMostMoves buffers: one that gets a new buffer in each
  // step would be moved in each step. The caller has the variable's lock.
  void Move(size_t i, const void* data, int64_t bytes) const {
    Seen& seen = seen_[i];
    if (seen.data.load(std::memory_order_relaxed) == data) return;
    seen.data.store(data, std::memory_order_relaxed);
    static const bool is_on = IsOn();
    if (is_on && seen.moves.fetch_add(1) < kMostMoves) MoveToLargePages(data, bytes);
  }

 private:
  // A variable gets its second buffer in its first step, where its initial value is still held.
  static constexpr int kMostMoves = 4;

  struct Seen {
    std::atomic<const void*> data{nullptr};
    std::atomic<int> moves{0};
  };

  static bool IsOn() {
    const char* value = std::getenv("GROUP_EMBEDDING_LARGE_PAGES");
    return value == nullptr || std::strcmp(value, "0") != 0;
  }

  std::unique_ptr<Seen[]> seen_;
};

}  // namespace group_embedding
