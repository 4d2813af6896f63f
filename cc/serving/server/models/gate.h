// Admission: how many requests are computed side by side, and how many wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>

#include "serving/server/models/serving_library.h"

namespace group_embedding::server {

using Deadline = std::chrono::system_clock::time_point;

// The error of a request whose deadline has passed while it waited.
Status TooLate();

// Requests enter in the order in which they came. Thread-safe.
class Gate {
 public:
  // running: requests at a time. waiting: requests that wait for one of them to leave.
  Gate(int running, int waiting) : most_running_(running), most_waiting_(waiting) {}

  // Blocks until the request may run; on OK the caller calls Leave once. RESOURCE_EXHAUSTED: too
  // many wait. DEADLINE_EXCEEDED: the deadline came first. CANCELLED: `cancelled` says so.
  Status Enter(Deadline deadline, const std::function<bool()>& cancelled);
  void Leave();

  // For a request that waits with another one, which enters for both. RESOURCE_EXHAUSTED, as of
  // Enter; on OK the caller calls RemoveWaiting.
  Status AddWaiting();
  void RemoveWaiting(int count);

  int running() const;
  int waiting() const;

 private:
  // Lives on the stack of its request's thread.
  struct Waiter {
    std::condition_variable admitted_changed;
    bool admitted = false;
  };

  Status CheckPlace() const;  // for one more that waits

  const int most_running_;
  const int most_waiting_;
  mutable std::mutex mutex_;
  int running_ = 0;
  std::list<Waiter*> waiting_;
  int waiting_with_ = 0;  // with one of these
};

// A place behind the gate, given back at the end of the scope.
class Admitted {
 public:
  Admitted(Gate& gate, Deadline deadline, const std::function<bool()>& cancelled)
      : gate_(gate), status_(gate.Enter(deadline, cancelled)) {}
  Admitted(const Admitted&) = delete;
  Admitted& operator=(const Admitted&) = delete;
  ~Admitted() {
    if (status_.ok()) gate_.Leave();
  }
  const Status& status() const { return status_; }

 private:
  Gate& gate_;
  const Status status_;
};

}  // namespace group_embedding::server
