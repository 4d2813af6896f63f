// JobThreads: jobs that run beside requests, on threads that start when they are needed.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace group_embedding {

// Jobs start in the order in which they came. Thread-safe.
class JobThreads {
 public:
  static constexpr int64_t kNone = -1;

  explicit JobThreads(int most_threads) : most_threads_(most_threads) {}
  // Drops the jobs that wait, and waits for those in progress.
  ~JobThreads();
  JobThreads(const JobThreads&) = delete;
  JobThreads& operator=(const JobThreads&) = delete;

  // A number for Remove; kNone in a process that was forked, which has no such threads.
  int64_t Add(std::function<void()> job);
  // Drops a job that waits; one that started goes on.
  void Remove(int64_t number);

 private:
  void Run();

  const int most_threads_;
  const pid_t process_ = getpid();
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::map<int64_t, std::function<void()>> waiting_;  // by number
  std::vector<std::thread> threads_;
  int64_t next_ = 0;
  int idle_ = 0;
  bool stop_ = false;
};

// A job that is done again and again, until the object ends.
class PeriodicJob {
 public:
  PeriodicJob(std::chrono::milliseconds period, std::function<void()> job);
  ~PeriodicJob();
  PeriodicJob(const PeriodicJob&) = delete;
  PeriodicJob& operator=(const PeriodicJob&) = delete;

 private:
  const pid_t process_ = getpid();
  std::mutex mutex_;  // of stop_
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace group_embedding
