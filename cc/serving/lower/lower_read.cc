#include "serving/lower/lower_read.h"

#include <new>
#include <string>

namespace group_embedding {

Status LowerRead::Here(const Deadline& deadline) {
  const auto start = Deadline::Clock::now();
  const RowPlaces places = {array_.array, array_.row_bytes, rows.data()};
  Status status = lower_->Read(keys.data(), num_keys(), deadline, found.get(), places);
  seconds_->Add(std::chrono::duration<double>(Deadline::Clock::now() - start).count());
  return status;
}

Status LowerRead::Beside(JobThreads* threads, const Deadline& deadline,
                         std::function<void(LowerRead*)> late) {
  const auto job = [self = shared_from_this(), late = std::move(late)] {
    Status status;
    try {
      status = self->Here(Deadline::Never());
    } catch (const std::bad_alloc&) {
      status = "the process has no more memory";
    }
    const bool succeeded = status.ok();
    if (self->Finish(std::move(status)) && succeeded) late(self.get());
  };
  const int64_t number = threads->Add(job);
  if (number == JobThreads::kNone) return Here(deadline);
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_done = [this] { return is_done_; };
  if (deadline.is_never()) {
    done_changed_.wait(lock, is_done);
  } else {
    done_changed_.wait_until(lock, deadline.end, is_done);
  }
  if (is_done_) return status_;
  is_abandoned_ = true;
  lock.unlock();
  threads->Remove(number);
  return "table '" + table_ + "', tier " + lower_->tier() + ": the rows of " +
         std::to_string(num_keys()) + " keys were not read within the request's " + deadline.Text();
}

bool LowerRead::Finish(Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = std::move(status);
  is_done_ = true;
  done_changed_.notify_all();
  return is_abandoned_;
}

}  // namespace group_embedding
