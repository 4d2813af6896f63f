#include "serving/server/models/follower.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace group_embedding::server {
namespace {

// As of `nice`: this thread gets a tenth of the time of a thread that answers, where both want it.
constexpr int kNiceness = 10;

// Requests go first: what versions need is done in the time that they leave. A server may have been
// started in real time, where niceness is nothing.
void GiveWayToRequests() {
  const sched_param none = {};
  sched_setscheduler(0, SCHED_BATCH, &none);
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceness);
}

}  // namespace

Status Follower::Start() {
  const Status status = source_->Start();
  if (!status.ok()) {
    SourceState state = versions_.source();
    state.error = status.error_message();
    versions_.SetSource(state);
  }
  thread_ = std::thread([this] { Run(); });
  return status;
}

void Follower::Run() {
  GiveWayToRequests();
  std::unique_lock<std::mutex> lock(mutex_);
  const std::chrono::duration<double> wait(poll_seconds_);
  while (!stopped_.wait_for(lock, wait, [this] { return stop_; })) {
    lock.unlock();
    source_->Poll();
    versions_.CloseUnused();
    lock.lock();
  }
}

void Follower::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace group_embedding::server
