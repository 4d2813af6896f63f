// A ParallelFor on real threads, for tests: every range is cut, so that a function which shares
// what it should not is seen by ThreadSanitizer and by tests that compare it with SerialFor.
#pragma once

#include <algorithm>
#include <thread>
#include <vector>

#include "core/parallel.h"

namespace group_embedding {
namespace testing {

inline ParallelFor ThreadedFor(int64_t num_threads) {
  return [num_threads](int64_t count, int64_t /*cost*/,
                       const std::function<void(int64_t, int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < num_threads; ++t) {
      const int64_t begin = count * t / num_threads, end = count * (t + 1) / num_threads;
      if (begin < end) threads.emplace_back([&body, begin, end] { body(begin, end); });
    }
    for (std::thread& thread : threads) thread.join();
  };
}

}  // namespace testing
}  // namespace group_embedding
