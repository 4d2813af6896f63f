#include "serving/server/models/gate.h"

namespace group_embedding::server {

Status TooLate() {
  return Status(StatusCode::DEADLINE_EXCEEDED,
                "the deadline passed while the request waited for requests in front of it");
}

namespace {

Status Cancelled() { return Status(StatusCode::CANCELLED, "the client cancelled the request"); }

}  // namespace

Status Gate::Enter(Deadline deadline, const std::function<bool()>& cancelled) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (std::chrono::system_clock::now() >= deadline) return TooLate();
  if (running_ < most_running_) {  // nobody waits then: Leave hands its place on
    ++running_;
    return Status::OK;
  }
  if (Status status = CheckPlace(); !status.ok()) return status;
  Waiter waiter;
  const auto place = waiting_.insert(waiting_.end(), &waiter);
  waiter.admitted_changed.wait_until(lock, deadline, [&] { return waiter.admitted; });
  if (!waiter.admitted) {
    waiting_.erase(place);
    return TooLate();
  }
  lock.unlock();
  if (!cancelled()) return Status::OK;
  Leave();
  return Cancelled();
}

Status Gate::CheckPlace() const {
  if (static_cast<int>(waiting_.size()) + waiting_with_ < most_waiting_) return Status::OK;
  return Status(StatusCode::RESOURCE_EXHAUSTED,
                "the server computes " + std::to_string(most_running_) + " requests, and " +
                    std::to_string(most_waiting_) +
                    " wait: send fewer at a time, or start it with more --threads or --queue");
}

Status Gate::AddWaiting() {
  std::lock_guard<std::mutex> lock(mutex_);
  Status status = CheckPlace();
  if (status.ok()) ++waiting_with_;
  return status;
}

void Gate::RemoveWaiting(int count) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_with_ -= count;
}

void Gate::Leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (waiting_.empty()) {
    --running_;
    return;
  }
  Waiter* next = waiting_.front();
  waiting_.pop_front();
  next->admitted = true;
  next->admitted_changed.notify_one();  // under the lock: the waiter lives until it has it
}

int Gate::running() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return running_;
}

int Gate::waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(waiting_.size()) + waiting_with_;
}

}  // namespace group_embedding::server
