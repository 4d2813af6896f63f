// LowerRead: one read of rows below memory, for a request that waits no longer than its deadline.
//
// A tier that keeps deadlines is read on the request's thread, and so is any without a time limit
// of its own. Else another thread reads, since a disk may hang: the request leaves at its deadline,
// and the read goes on by itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "serving/lower/deadline.h"
#include "serving/lower/job_threads.h"
#include "serving/lower/latencies.h"
#include "serving/lower/lower_rows.h"

namespace group_embedding {

class LowerRead : public std::enable_shared_from_this<LowerRead> {
 public:
  using GiveBack = std::function<void(const std::vector<int64_t>&)>;

  // table: for messages. wanted: each key once. `array`: of rows. rows: [wanted] of it, that nobody
  // else has; those that are left go to `give_back` in the end. `seconds` gets the time of the
  // read; outlives it.
  LowerRead(const std::string& table, std::shared_ptr<const LowerRows> lower,
            std::vector<int64_t> wanted, RowPlaces array, std::vector<int64_t> rows_of_array,
            GiveBack give_back, Latencies* seconds)
      : keys(std::move(wanted)),
        found(new bool[keys.size()]),
        rows(std::move(rows_of_array)),
        array_(array),
        give_back_(std::move(give_back)),
        table_(table),
        lower_(std::move(lower)),
        seconds_(seconds) {}
  ~LowerRead() { give_back_(rows); }
  LowerRead(const LowerRead&) = delete;
  LowerRead& operator=(const LowerRead&) = delete;

  int64_t num_keys() const { return static_cast<int64_t>(keys.size()); }

  // On this thread: returns by the deadline if the tier does.
  Status Here(const Deadline& deadline);
  // By `threads`: returns by the deadline. `late` is called by another thread if the read succeeds
  // after that.
  Status Beside(JobThreads* threads, const Deadline& deadline,
                std::function<void(LowerRead*)> late);

  const std::vector<int64_t> keys;
  const std::unique_ptr<bool[]> found;  // [keys]
  std::vector<int64_t> rows;            // [keys] of the array: written where the key was found

 private:
  // Returns whether the request is gone.
  bool Finish(Status status);

  const RowPlaces array_;
  const GiveBack give_back_;
  const std::string table_;
  const std::shared_ptr<const LowerRows> lower_;
  Latencies* const seconds_;
  std::mutex mutex_;  // of what follows
  std::condition_variable done_changed_;
  bool is_done_ = false, is_abandoned_ = false;
  Status status_;
};

}  // namespace group_embedding
