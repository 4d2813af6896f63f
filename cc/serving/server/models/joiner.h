// Joiner: requests that wait for their turn are computed together.
//
// A request alone begins at once. While as many run as may, those that wait and fit together become
// one batch: its first request leads it, waits at the gate for all, computes one joined request
// once it is let in, and hands each its rows of the answer. So batches grow with the load. Under
// load a batch also waits a little to be filled: the time that it holds up is given to requests
// that are being read. If a joined request fails, each of its requests is computed alone, and the
// error is that of its own. A request that is late or cancelled leaves its batch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serving/server/models/join_inputs.h"
#include "serving/server/models/request.h"
#include "serving/server/models/served_model.h"

namespace group_embedding::server {

// Thread-safe.
class Joiner {
 public:
  Joiner(Gate& gate, const BatchingOptions& options) : gate_(gate), options_(options) {}

  // Waits at the gate and computes the answer, by itself or with others.
  Status Predict(const std::shared_ptr<ServedModel>& served, const Request& request,
                 const Question& question, Response* response);

  // Runs that computed several requests, and the requests of those.
  int64_t runs() const { return runs_; }
  int64_t joined() const { return joined_; }

 private:
  enum class State { kWaits, kLeads, kRuns, kDone, kAlone };

  // Lives on the stack of its request's thread.
  struct Member {
    const Request& request;
    const JoinableInputs& inputs;
    int64_t first = 0;  // of its samples in the batch
    State state = State::kWaits;
    std::condition_variable changed;
  };

  struct Batch {
    std::string key;
    std::list<Member*> members;  // without those that left
    int64_t samples = 0;
    std::condition_variable filled;
    std::shared_ptr<Response> response;
  };
  using Lock = std::unique_lock<std::mutex>;

  // Waits at the gate, and computes one request.
  Status Alone(const ServedModel& served, const Request& request, const Question& question,
               Response* response);
  // Computes one request behind the gate.
  static Status ComputeOne(const ServedModel& served, const Request& request,
                           const Question& question, Response* response);
  // Adds the request to the open batch of its kind, or opens one, which it leads.
  Status Enqueue(const std::string& key, Member* member, std::shared_ptr<Batch>* batch);
  // Waits until the member leads its batch, or has an answer.
  Status Follow(Lock& lock, Batch& batch, Member* member);
  // Waits at the gate, and computes the batch. response: of a batch of one.
  Status Lead(Lock& lock, const ServedModel& served, const Question& question, Batch& batch,
              Member* member, Response* response);
  static void Leave(Batch& batch, Member* member);
  // Under load, waits until the batch is full, but not for long.
  void WaitForOthers(Lock& lock, Batch& batch, Deadline deadline);
  // No other request joins it.
  void Close(const Batch& batch);
  // The samples of a run with so many: of `allowed_sizes` the next one.
  int64_t Padded(int64_t samples) const;
  // Computes the joined requests behind the gate, without the lock.
  Status ComputeJoined(Lock& lock, const ServedModel& served, const Question& question,
                       Batch& batch);
  Status ComputeCopied(const ServedModel& served, const Question& question,
                       const std::vector<const JoinableInputs*>& inputs, int64_t samples,
                       Deadline deadline, Batch& batch);

  Gate& gate_;
  const BatchingOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Batch>> open_;  // by what can be joined
  int waiting_batches_ = 0;
  size_t recent_ = 0;  // requests of recent runs: the largest, halved with each run since
  std::atomic<int64_t> runs_{0}, joined_{0};
};

}  // namespace group_embedding::server
