// PendingCalls: the collective calls in which this process waits. The watch over ranks compares the
// lists of all ranks, and reports ranks that wait for each other in different calls.
//
// Thread safety: any thread may call any method at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace group_embedding {

struct PendingCall {
  std::string key;          // the same on all ranks that make the call
  std::string description;  // for messages: what the call does
  double seconds;           // since it began
};

class PendingCalls {
 public:
  // The process's list, which is never destroyed.
  static PendingCalls& OfProcess();

  // Adds a call, and returns its number. Replaces a call of the same key that has not ended.
  // caller: the function in which the call stands; if any, it is a part of the key in the list.
  int64_t Begin(const std::string& key, const std::string& description,
                const std::string& caller = "");
  void End(const std::string& key);
  // Ends a call that failed. Does nothing if another call of its key has begun since.
  void EndNumber(const std::string& key, int64_t number);

  std::vector<PendingCall> List();

 private:
  struct Call {
    int64_t number;
    std::string caller, description;
    std::chrono::steady_clock::time_point begin;
  };

  std::mutex mutex_;
  int64_t newest_ = 0;
  std::map<std::string, Call> calls_;
};

// Lists a call as pending while the object lives.
class PendingScope {
 public:
  PendingScope(const std::string& key, const std::string& description)
      : key_(key), number_(PendingCalls::OfProcess().Begin(key, description)) {}
  ~PendingScope() { PendingCalls::OfProcess().EndNumber(key_, number_); }
  PendingScope(const PendingScope&) = delete;
  PendingScope& operator=(const PendingScope&) = delete;

 private:
  const std::string key_;
  const int64_t number_;
};

}  // namespace group_embedding
