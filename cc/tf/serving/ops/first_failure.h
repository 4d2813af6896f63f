// FirstFailure: the error of the first op that failed, as the op told it. TensorFlow replaces an
// UnavailableError by an InternalError. Any number of threads.
#pragma once

#include <mutex>

#include "absl/status/status.h"

namespace group_embedding {

class FirstFailure {
 public:
  void Fail(const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_.Update(status);
  }

  // What TensorFlow has returned, or why.
  absl::Status Explain(const absl::Status& returned) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return returned.ok() || failure_.ok() ? returned : failure_;
  }

 private:
  std::mutex mutex_;
  absl::Status failure_;
};

}  // namespace group_embedding
