// ServedRequest: what ops know of the request that they compute, and tell it.
#pragma once

#include "serving/lower/deadline.h"
#include "tf/serving/ops/first_failure.h"

namespace group_embedding {

class ServedRequest {
 public:
  explicit ServedRequest(const Deadline& deadline) : deadline(deadline) {}

  // The request of the ops that the calling thread runs; null: they belong to none.
  static ServedRequest*& Current() {
    thread_local ServedRequest* current = nullptr;
    return current;
  }

  // Makes it the calling thread's, for the scope's life.
  class Scope {
   public:
    explicit Scope(ServedRequest* request) : former_(Current()) { Current() = request; }
    ~Scope() { Current() = former_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ServedRequest* const former_;
  };

  const Deadline deadline;
  FirstFailure failure;  // of an op, for the request's answer
};

}  // namespace group_embedding
