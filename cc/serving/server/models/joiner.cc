#include "serving/server/models/joiner.h"

#include <algorithm>
#include <chrono>

namespace group_embedding::server {
namespace {

// A batch is copied in less than that.
constexpr std::chrono::milliseconds kCopied(1);

std::string KeyOf(const ServedModel* served, const Question& question,
                  const JoinableInputs& inputs) {
  std::string key = std::to_string(reinterpret_cast<uintptr_t>(served)) + question.signature;
  for (const char* output : question.outputs) key.append(1, '\0').append(output);
  return key.append(1, '\0').append(inputs.layout);
}

// Gives a place behind the gate back, whatever ends the scope.
class Place {
 public:
  explicit Place(Gate& gate) : gate_(gate) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { gate_.Leave(); }

 private:
  Gate& gate_;
};

}  // namespace

Status Joiner::Predict(const std::shared_ptr<ServedModel>& served, const Request& request,
                       const Question& question, Response* response) {
  std::optional<JoinableInputs> inputs;
  if (options_.most_samples > 0) inputs = served->AsJoinable(question);
  if (!inputs || inputs->samples > options_.most_samples) {
    return Alone(*served, request, question, response);
  }
  Member member{request, *inputs};
  std::shared_ptr<Batch> batch;
  Lock lock(mutex_);
  Status status = Enqueue(KeyOf(served.get(), question, *inputs), &member, &batch);
  if (status.ok()) status = Follow(lock, *batch, &member);
  if (status.ok() && member.state == State::kLeads) {
    status = Lead(lock, *served, question, *batch, &member, response);
  }
  lock.unlock();
  if (!status.ok()) return status;
  if (member.state == State::kAlone) {
    status = Alone(*served, request, question, response);
    if (status.ok()) served->Saw(question, *response, inputs->samples);
    return status;
  }
  if (batch->response) response->TakeRows(batch->response, member.first, inputs->samples);
  return Status::OK;
}

Status Joiner::Alone(const ServedModel& served, const Request& request, const Question& question,
                     Response* response) {
  const Admitted admitted(gate_, request.deadline, request.cancelled);
  return admitted.status().ok() ? ComputeOne(served, request, question, response)
                                : admitted.status();
}

Status Joiner::ComputeOne(const ServedModel& served, const Request& request,
                          const Question& question, Response* response) {
  return served.model().Predict(question.signature, question.inputs, question.outputs,
                                request.deadline, request.cancelled, response);
}

Status Joiner::Enqueue(const std::string& key, Member* member, std::shared_ptr<Batch>* batch) {
  std::shared_ptr<Batch>& open = open_[key];
  const int64_t samples = member->inputs.samples;
  const bool fits = open != nullptr && open->samples + samples <= options_.most_samples;
  if (fits) {
    if (Status status = gate_.AddWaiting(); !status.ok()) return status;
  } else {
    if (options_.most_batches > 0 && waiting_batches_ >= options_.most_batches) {
      if (open == nullptr) open_.erase(key);
      return Status(StatusCode::RESOURCE_EXHAUSTED,
                    std::to_string(waiting_batches_) +
                        " batches wait: send fewer at a time, or state more max_enqueued_batches");
    }
    open = std::make_shared<Batch>();
    open->key = key;
    member->state = State::kLeads;
    ++waiting_batches_;
  }
  *batch = open;
  open->samples += samples;
  open->members.push_back(member);
  if (open->samples == options_.most_samples) {
    open->filled.notify_one();
    open_.erase(key);
  }
  return Status::OK;
}

Status Joiner::Follow(Lock& lock, Batch& batch, Member* member) {
  const Deadline deadline = member->request.deadline;
  while (member->state == State::kWaits || member->state == State::kRuns) {
    const bool is_copied = member->state == State::kRuns && batch.response == nullptr;
    if (std::chrono::system_clock::now() < deadline) {
      member->changed.wait_until(lock, deadline);
    } else if (is_copied) {
      member->changed.wait_for(lock, kCopied);
    } else {
      if (member->state == State::kWaits) gate_.RemoveWaiting(1);
      Leave(batch, member);
      return TooLate();
    }
  }
  return Status::OK;
}

void Joiner::Leave(Batch& batch, Member* member) {
  batch.members.remove(member);
  batch.samples -= member->inputs.samples;
}

void Joiner::Close(const Batch& batch) {
  const auto open = open_.find(batch.key);
  if (open != open_.end() && open->second.get() == &batch) open_.erase(open);
  --waiting_batches_;
}

void Joiner::WaitForOthers(Lock& lock, Batch& batch, Deadline deadline) {
  if (recent_ < 2 || options_.wait.count() == 0) return;
  const auto until = std::min(deadline, std::chrono::system_clock::now() + options_.wait);
  batch.filled.wait_until(lock, until, [&] { return batch.samples == options_.most_samples; });
}

int64_t Joiner::Padded(int64_t samples) const {
  const auto& sizes = options_.allowed_sizes;
  const auto found = std::lower_bound(sizes.begin(), sizes.end(), samples);
  return found == sizes.end() ? samples : *found;
}

Status Joiner::Lead(Lock& lock, const ServedModel& served, const Question& question, Batch& batch,
                    Member* member, Response* response) {
  const Request& request = member->request;
  WaitForOthers(lock, batch, request.deadline);
  lock.unlock();
  const Status entered = gate_.Enter(request.deadline, request.cancelled);
  lock.lock();
  if (!entered.ok()) {
    Leave(batch, member);
    if (batch.members.empty()) {
      Close(batch);
    } else {  // the next one leads
      gate_.RemoveWaiting(1);
      batch.members.front()->state = State::kLeads;
      batch.members.front()->changed.notify_one();
    }
    return entered;
  }
  Close(batch);
  recent_ = std::max(recent_ / 2, batch.members.size());
  gate_.RemoveWaiting(static_cast<int>(batch.members.size()) - 1);
  if (batch.members.size() == 1 && Padded(batch.samples) == batch.samples) {
    lock.unlock();
    const Status status = [&] {
      const Place place(gate_);
      return ComputeOne(served, request, question, response);
    }();
    if (status.ok()) served.Saw(question, *response, member->inputs.samples);
    lock.lock();
    member->state = State::kDone;
    return status;
  }
  const Status status = ComputeJoined(lock, served, question, batch);
  if (status.ok()) {
    ++runs_;
    joined_ += static_cast<int64_t>(batch.members.size());
  }
  for (Member* one : batch.members) {
    one->state = status.ok() ? State::kDone : State::kAlone;
    if (one != member) one->changed.notify_one();
  }
  return Status::OK;
}

Status Joiner::ComputeJoined(Lock& lock, const ServedModel& served, const Question& question,
                             Batch& batch) {
  std::vector<const JoinableInputs*> inputs;
  Deadline deadline = Deadline::min();
  int64_t samples = 0;
  for (Member* member : batch.members) {
    member->state = State::kRuns;
    member->first = samples;
    samples += member->inputs.samples;
    inputs.push_back(&member->inputs);
    deadline = std::max(deadline, member->request.deadline);
  }
  lock.unlock();
  Status status;
  try {
    const Place place(gate_);
    status = ComputeCopied(served, question, inputs, Padded(samples), deadline, batch);
  } catch (const std::exception& error) {  // as for want of memory: others wait for this thread
    status = Status(StatusCode::RESOURCE_EXHAUSTED, error.what());
  }
  lock.lock();
  return status;
}

Status Joiner::ComputeCopied(const ServedModel& served, const Question& question,
                             const std::vector<const JoinableInputs*>& inputs, int64_t samples,
                             Deadline deadline, Batch& batch) {
  const Status no_rows(StatusCode::FAILED_PRECONDITION, "an output has no row for each sample");
  if (!served.HaveRows(question, samples)) return no_rows;
  const JoinedInputs joined(served.RolesOfInputs(question), inputs, samples);
  const auto response = std::make_shared<Response>();
  {
    const Lock lock(mutex_);
    batch.response = response;  // from now on, requests may leave
  }
  const std::function<bool()> all_are_gone = [&] {
    const Lock lock(mutex_);
    return std::all_of(batch.members.begin(), batch.members.end(), [](const Member* member) {
      return member->request.cancelled && member->request.cancelled();
    });
  };
  const Status status =
      served.model().Predict(question.signature, joined.tensors(), question.outputs, deadline,
                             all_are_gone, response.get());
  if (!status.ok()) return status;
  return served.Saw(question, *response, samples) ? Status::OK : no_rows;
}

}  // namespace group_embedding::server
