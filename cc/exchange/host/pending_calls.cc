#include "exchange/host/pending_calls.h"

namespace group_embedding {

PendingCalls& PendingCalls::OfProcess() {
  static PendingCalls* calls = new PendingCalls;
  return *calls;
}

int64_t PendingCalls::Begin(const std::string& key, const std::string& description,
                            const std::string& caller) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_[key] = {++newest_, caller, description, std::chrono::steady_clock::now()};
  return newest_;
}

void PendingCalls::End(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.erase(key);
}

void PendingCalls::EndNumber(const std::string& key, int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(key);
  if (found != calls_.end() && found->second.number == number) calls_.erase(found);
}

std::vector<PendingCall> PendingCalls::List() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  std::vector<PendingCall> list;
  for (const auto& [key, call] : calls_) {
    const std::chrono::duration<double> seconds = now - call.begin;
    const std::string full_key = call.caller.empty() ? key : call.caller + "/" + key;
    list.push_back({full_key, call.description, seconds.count()});
  }
  return list;
}

}  // namespace group_embedding
