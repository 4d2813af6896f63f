// RequestDeadline: the deadline of the request that a thread computes, for the ops that it runs.
#pragma once

#include "serving/deadline.h"

namespace group_embedding {

// For its life, on the thread that makes it.
class RequestDeadline {
 public:
  explicit RequestDeadline(const Deadline& deadline) : former_(Current()) { Current() = deadline; }
  ~RequestDeadline() { Current() = former_; }
  RequestDeadline(const RequestDeadline&) = delete;
  RequestDeadline& operator=(const RequestDeadline&) = delete;

  // Never, where the thread computes no request.
  static Deadline& Current() {
    thread_local Deadline current = Deadline::Never();
    return current;
  }

 private:
  const Deadline former_;
};

}  // namespace group_embedding
