#include "serving/lower/job_threads.h"

#include <new>
#include <utility>

namespace group_embedding {

JobThreads::~JobThreads() {
  if (getpid() != process_) {  // the threads are those of another process
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int64_t JobThreads::Add(std::function<void()> job) {
  if (getpid() != process_) return kNone;
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t number = next_++;
  waiting_.emplace(number, std::move(job));
  if (idle_ < static_cast<int>(waiting_.size()) &&
      static_cast<int>(threads_.size()) < most_threads_) {
    threads_.emplace_back([this] { Run(); });
  }
  changed_.notify_one();
  return number;
}

void JobThreads::Remove(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(number);
}

void JobThreads::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    --idle_;
    if (stop_) return;
    const std::function<void()> job = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    lock.unlock();
    try {
      job();
    } catch (const std::bad_alloc&) {
    }  // left undone
    lock.lock();
  }
}

PeriodicJob::PeriodicJob(std::chrono::milliseconds period, std::function<void()> job)
    : thread_([this, period, job = std::move(job)] {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!stopped_.wait_for(lock, period, [this] { return stop_; })) {
          lock.unlock();
          try {
            job();
          } catch (const std::bad_alloc&) {
          }  // until the next time
          lock.lock();
        }
      }) {}

PeriodicJob::~PeriodicJob() {
  if (getpid() != process_) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

}  // namespace group_embedding
