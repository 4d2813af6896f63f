// How the CPU functions use more than one thread, without knowing whose threads they are.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

namespace group_embedding {

// Calls `body(begin, end)` on disjoint ranges that cover [0, count), perhaps at the same time, and
// returns when all are done. `cost` is a guess of nanoseconds per item. No result of this library
// depends on how the range is cut. Throws what one of the calls threw; others may have been made.
using ParallelFor = std::function<void(int64_t count, int64_t cost,
                                       const std::function<void(int64_t, int64_t)>& body)>;

inline void SerialFor(int64_t count, int64_t /*cost*/,
                      const std::function<void(int64_t, int64_t)>& body) {
  if (count > 0) body(0, count);
}

// What threads of a ParallelFor throw, for the thread that waits for them: an exception that leaves
// another thread ends the process.
class FirstException {
 public:
  template <typename Body>
  void Catch(const Body& body) noexcept {
    try {
      body();
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (first_ == nullptr) first_ = std::current_exception();
    }
  }
  // Once the threads are done.
  void Rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace group_embedding
