#include "serving/server/protocol/workers.h"

namespace group_embedding::server {

bool Workers::Post(Task task) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!idle_.empty()) {
    Worker* worker = idle_.back();
    idle_.pop_back();
    worker->task = std::move(task);
    worker->called.notify_one();
    return true;
  }
  if (workers_.size() < most_threads_) {
    Worker* worker = workers_.emplace_back(std::make_unique<Worker>()).get();
    worker->task = std::move(task);
    worker->thread = std::thread([this, worker] { Work(worker); });
    return true;
  }
  if (waiting_.size() >= most_waiting_) return false;
  waiting_.push_back(std::move(task));
  return true;
}

void Workers::Work(Worker* worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    worker->called.wait(lock, [&] { return worker->task != nullptr || ends_; });
    if (worker->task == nullptr) return;
    while (worker->task != nullptr) {
      lock.unlock();
      worker->task();
      worker->task = nullptr;  // what it holds ends here, outside of the lock
      lock.lock();
      if (waiting_.empty()) continue;
      worker->task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    idle_.push_back(worker);
  }
}

void Workers::Join() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    for (const auto& worker : workers_) worker->called.notify_one();
  }
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

}  // namespace group_embedding::server
