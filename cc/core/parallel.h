// How the CPU functions use more than one thread, without knowing whose threads they are.
#pragma once

#include <cstdint>
#include <functional>

namespace group_embedding {

// Calls `body(begin, end)` on disjoint ranges that cover [0, count), perhaps at the same time, and
// returns when all are done. `cost` is a guess of nanoseconds per item. No result of this library
// depends on how the range is cut.
using ParallelFor = std::function<void(int64_t count, int64_t cost,
                                       const std::function<void(int64_t, int64_t)>& body)>;

inline void SerialFor(int64_t count, int64_t /*cost*/,
                      const std::function<void(int64_t, int64_t)>& body) {
  if (count > 0) body(0, count);
}

}  // namespace group_embedding
