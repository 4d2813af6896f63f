#include "table/touch_ahead.h"

#include <algorithm>
#include <system_error>
#include <thread>

#include "table/memory_left.h"

namespace group_embedding {

TouchAhead& TouchAhead::Shared() {
  static auto* ahead = new TouchAhead;  // never deleted: tables may live until the very end
  return *ahead;
}

bool TouchAhead::StartThread() {
  if (is_tried_) return is_running_;
  is_tried_ = true;
  try {
    std::thread([this] { Run(); }).detach();
    is_running_ = true;
  } catch (const std::system_error&) {  // there may be no more threads
  }
  return is_running_;
}

void TouchAhead::Ask(GrowingMemory* memory) {
  if (!home_.IsHere()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (AddressesAreLimited() || !StartThread()) return;
  if (std::find(waiting_.begin(), waiting_.end(), memory) != waiting_.end()) return;
  waiting_.push_back(memory);
  asked_.notify_one();
}

void TouchAhead::Forget(GrowingMemory* memory) {
  if (!home_.IsHere()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), memory), waiting_.end());
  done_.wait(lock, [&] { return current_ != memory; });
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), memory), waiting_.end());
}

void TouchAhead::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] { return !waiting_.empty(); });
    current_ = waiting_.front();
    lock.unlock();
    // A limit may have been set meanwhile: where no addresses are left, the first exception of a
    // thread ends the process, as there is no memory to throw it.
    const bool is_last = AddressesAreLimited() || !current_->TouchNextPage();
    lock.lock();
    // Who has asked meanwhile is behind the first place.
    GrowingMemory* const memory = current_;
    current_ = nullptr;
    const auto at = std::find(waiting_.begin(), waiting_.end(), memory);
    if (at != waiting_.end()) {
      waiting_.erase(at);
      if (!is_last) waiting_.push_back(memory);
    }
    done_.notify_all();
  }
}

}  // namespace group_embedding
