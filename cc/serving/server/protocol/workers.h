// Threads that compute. Those of connections hand requests to them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace group_embedding::server {

// The thread that ended its task last takes the next one: its memory is warm. Thread-safe.
class Workers {
 public:
  using Task = std::function<void()>;

  // most_waiting: tasks for which there is no thread.
  Workers(int most_threads, int most_waiting)
      : most_threads_(static_cast<size_t>(most_threads)),
        most_waiting_(static_cast<size_t>(most_waiting)) {}
  ~Workers() { Join(); }

  // False: all threads compute, and as many tasks wait as may.
  bool Post(Task task);
  // Ends the threads, once all tasks are done. No task may come from now on.
  void Join();

 private:
  struct Worker {
    std::thread thread;
    std::condition_variable called;
    Task task;
  };

  void Work(Worker* worker);

  const size_t most_threads_, most_waiting_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;  // the last one ended its task last
  std::deque<Task> waiting_;
  bool ends_ = false;
};

// Requests that are computed, or whose answers are written. Thread-safe.
class InFlight {
 public:
  void Add(int count) {
    std::lock_guard<std::mutex> lock(mutex_);
    count_ += count;
    if (count_ == 0) none_.notify_all();
  }
  // Until there are none, or the seconds are over.
  void WaitForNone(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    none_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int count_ = 0;
};

}  // namespace group_embedding::server
