// Which collective calls this process waits in, for the watch over ranks: it compares those of all
// ranks, and says where two wait for each other in different calls.
//
// Thread safety: every method may be called from any thread at any time.
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
  std::string description;  // what the call does, for a person
  double seconds;           // since it began
};

class PendingCalls {
 public:
  // That of the process, which is never destroyed.
  static PendingCalls& OfProcess();

  // A call of the same key that is still there is replaced. Returns the number of this one.
  int64_t Begin(const std::string& key, const std::string& description);
  void End(const std::string& key);
  // Of a call that failed: nothing where another one of its key has begun since.
  void EndNumber(const std::string& key, int64_t number);

  std::vector<PendingCall> List();

 private:
  struct Call {
    int64_t number;
    std::string description;
    std::chrono::steady_clock::time_point begin;
  };

  std::mutex mutex_;
  int64_t newest_ = 0;
  std::map<std::string, Call> calls_;
};

// A call of this process while the object lives.
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
