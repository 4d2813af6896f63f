// ServedRequest: what ops know of the request that they compute, and report to it.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "serving/lower/deadline.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/serving/ops/first_failure.h"

namespace group_embedding {

// The inputs of a request, all of its signature's in the order of their names. They live as long as
// the request, and lie where its sender has them: their elements are read by pointer alone.
struct RequestInputs {
  const std::string& signature;
  const std::vector<tensorflow::Tensor>& tensors;
};

class ServedRequest {
 public:
  // read_deadline: for rows below memory. deadline: for the answer. is_cancelled: whether the
  // sender is gone; one thread at a time calls it.
  ServedRequest(const RequestInputs& inputs, const Deadline& read_deadline,
                const Deadline& deadline, std::function<bool()> is_cancelled)
      : inputs(inputs),
        read_deadline(read_deadline),
        deadline_(deadline),
        is_cancelled_(std::move(is_cancelled)),
        looked_at_(CoarseNow()) {}

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

  // Whether nobody waits for the answer any more; any thread. Takes nanoseconds: it looks once in a
  // tick of the system's coarse clock, which are 1 to 10 ms.
  bool IsOver() {
    if (is_over_.load(std::memory_order_relaxed)) return true;
    const int64_t now = CoarseNow();
    int64_t last = looked_at_.load(std::memory_order_relaxed);
    return now != last && looked_at_.compare_exchange_strong(last, now) && Look();
  }

  // DEADLINE_EXCEEDED or CANCELLED, once the request is over.
  absl::Status Check() {
    return IsOver() ? failure.Explain(absl::CancelledError()) : absl::OkStatus();
  }

  // As Check, with a look.
  absl::Status CheckNow() { return Look() ? Check() : absl::OkStatus(); }

  // Calls the body for a range in pieces of `kPieceNanoseconds`, until the request is over.
  void InPieces(int64_t begin, int64_t end, int64_t cost,
                const std::function<void(int64_t, int64_t)>& body) {
    const int64_t piece = std::max<int64_t>(1, kPieceNanoseconds / std::max<int64_t>(1, cost));
    for (; begin < end && !IsOver(); begin += piece) body(begin, std::min(end, begin + piece));
  }

  const RequestInputs inputs;
  const Deadline read_deadline;
  FirstFailure failure;  // of an op, for the request's answer

 private:
  static constexpr int64_t kPieceNanoseconds = 250'000;

  static int64_t CoarseNow() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  }

  bool Look() {
    const std::unique_lock<std::mutex> lock(looking_, std::try_to_lock);
    if (!lock.owns_lock() || is_over_) return is_over_;
    if (deadline_.is_over()) {
      failure.Fail(
          absl::DeadlineExceededError("the deadline passed while the request was computed"));
    } else if (is_cancelled_ && is_cancelled_()) {
      failure.Fail(absl::CancelledError("the request was cancelled while it was computed"));
    } else {
      return false;
    }
    is_over_ = true;
    return true;
  }

  const Deadline deadline_;
  const std::function<bool()> is_cancelled_;
  std::atomic<bool> is_over_{false};
  std::atomic<int64_t> looked_at_;
  std::mutex looking_;
};

}  // namespace group_embedding
