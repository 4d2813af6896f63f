// Locks of variables and of keyed tables, each once and in the order of addresses: the order in
// which TensorFlow's optimizers lock too.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "tensorflow/core/platform/mutex.h"

namespace group_embedding {

// Held from Lock() to the end of its life.
template <bool kShared>
class ResourceLocks {
 public:
  ResourceLocks() = default;
  ResourceLocks(const ResourceLocks&) = delete;
  ResourceLocks& operator=(const ResourceLocks&) = delete;
  ~ResourceLocks() {
    for (tensorflow::mutex* mutex : mutexes_) kShared ? mutex->unlock_shared() : mutex->unlock();
  }

  void Lock(std::vector<tensorflow::mutex*> mutexes) {
    mutexes_ = std::move(mutexes);
    std::sort(mutexes_.begin(), mutexes_.end());
    mutexes_.erase(std::unique(mutexes_.begin(), mutexes_.end()), mutexes_.end());
    for (tensorflow::mutex* mutex : mutexes_) kShared ? mutex->lock_shared() : mutex->lock();
  }

 private:
  std::vector<tensorflow::mutex*> mutexes_;
};

using SharedLocks = ResourceLocks<true>;
using ExclusiveLocks = ResourceLocks<false>;

}  // namespace group_embedding
