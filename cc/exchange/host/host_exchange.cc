#include "exchange/host/host_exchange.h"

#include <algorithm>
#include <thread>

namespace group_embedding {
namespace {

std::string WaitsIn(const CallDescription& description) {
  if (description.text->empty()) return "";
  return "; this rank waits for it in " + description.text->substr(0, description.text->find('\n'));
}

}  // namespace

const char* Inbox::data(int rank) const {
  return messages_[rank] == nullptr ? nullptr : messages_[rank]->data();
}

int64_t Inbox::bytes(int rank) const {
  return messages_[rank] == nullptr ? 0 : messages_[rank]->bytes;
}

std::string Inbox::NameOf(int rank) const { return exchange_->NameOf(rank); }

std::shared_ptr<HostExchange> HostExchange::Make(int rank, int num_ranks, Status* error,
                                                 std::vector<int> numbers) {
  std::unique_ptr<MessageMemory> memory = MessageMemory::Make(rank, num_ranks, error);
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<HostExchange>(
      new HostExchange(rank, num_ranks, std::move(numbers), std::move(memory)));
}

Status HostExchange::Join(const std::vector<int>& sockets, LateWarning late) {
  if (static_cast<int>(sockets.size()) != num_ranks_) {
    return "expected a connection or -1 for each of " + std::to_string(num_ranks_) +
           " ranks, got " + std::to_string(sockets.size());
  }
  bool has_network = false;
  for (int n = 0; n < num_ranks_; ++n) {
    has_network |= n != rank_ && sockets[n] >= 0;
    if (n != rank_ && sockets[n] < 0 && !memory_->IsMapped(n)) {
      return NameOf(n) + ": expected a connection, or memory that was mapped";
    }
  }
  if (has_network) {
    network_ = std::make_unique<MessageNetwork>(sockets, [this] { memory_->WakeThis(); });
    for (int n = 0; n < num_ranks_; ++n) {
      if (n != rank_ && sockets[n] >= 0) transports_[n] = network_.get();
    }
  }
  std::thread([self = shared_from_this(), late = std::move(late)] { self->Listen(late); }).detach();
  return {};
}

Status HostExchange::Prepare(const std::string& name, const CallDescription& description,
                             const std::vector<int64_t>& bytes, Outgoing* outgoing) {
  std::lock_guard<std::mutex> lock(mutex_);
  memory_->FreeRead();
  outgoing->name = name;
  outgoing->description = description;
  outgoing->messages.clear();
  outgoing->messages.resize(num_ranks_);
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    outgoing->messages[n] = transports_[n]->NewMessage(name, description, bytes[n]);
    if (outgoing->messages[n] == nullptr) {
      outgoing->messages.clear();
      return "expected all that ranks send at a time to fit " +
             std::to_string(SharedMemory::kBytes >> 30) + " GiB, got " + std::to_string(bytes[n]) +
             " bytes more for " + NameOf(n) + "; use smaller batches";
    }
  }
  return {};
}

void HostExchange::Send(Outgoing outgoing, Done done) {
  std::vector<Ended> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Call& call = calls_[outgoing.name];
    if (!end_.empty() || call.done) {
      ended.push_back({std::move(done),
                       end_.empty() ? "'" + outgoing.name + "': expected calls of one name one " +
                                          "after the other, got one while another is under way"
                                    : end_,
                       nullptr});
    } else {
      call.arrived.resize(num_ranks_);
      call.done = std::move(done);
      call.description = outgoing.description;
      call.begin = std::chrono::steady_clock::now();
      call.is_late = false;
      memory_->AddWaiting(1);  // before Collect, so that no message is missed
      for (int n = 0; n < num_ranks_; ++n) {
        if (n == rank_) continue;
        use_.sent_bytes[n] += outgoing.messages[n]->bytes;
        transports_[n]->Post(n, std::move(outgoing.messages[n]), call.description);
      }
      Collect();
      ended = FindEnded();
    }
  }
  memory_->WakeOthers();
  for (Ended& one : ended) one.done(one.error, std::move(one.inbox));
}

void HostExchange::End(const std::string& reason) {
  std::vector<Ended> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!end_.empty()) return;
    end_ = "the exchange has ended: " + reason;
    ended = FindEnded();
    SetEnded(reason);
  }
  memory_->WakeOthers();
  memory_->WakeThis();
  for (Ended& one : ended) one.done(one.error, nullptr);
}

void HostExchange::SetEnded(const std::string& reason) {
  memory_->SetEnded(reason);
  if (network_ != nullptr) network_->SetEnded(reason);
}

void HostExchange::WaitUntilReceived(double most_seconds) {
  if (network_ != nullptr) network_->WaitUntilReceived(most_seconds);
}

std::vector<PendingCall> HostExchange::Waiting() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  std::vector<PendingCall> waiting;
  for (const auto& [name, call] : calls_) {
    const std::chrono::duration<double> seconds = now - call.begin;
    if (call.done) waiting.push_back({name, *call.description.text, seconds.count()});
  }
  return waiting;
}

ExchangeUse HostExchange::Use() {
  std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

void HostExchange::Listen(const LateWarning& late) {
  while (true) {
    const uint32_t seen = memory_->wake_count();
    std::vector<Ended> ended;
    std::vector<std::string> warnings;
    bool has_ended;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!end_.empty()) return;
      Collect();
      ended = FindEnded();
      warnings = FindLate(late.seconds);
      has_ended = !end_.empty();
    }
    if (has_ended) memory_->WakeOthers();
    for (Ended& one : ended) one.done(one.error, std::move(one.inbox));
    for (const std::string& warning : warnings) late.warn(warning);
    memory_->WaitForNews(seen, late.seconds);
  }
}

std::vector<std::string> HostExchange::FindLate(double seconds) {
  std::vector<std::string> warnings;
  const auto now = std::chrono::steady_clock::now();
  for (auto& [name, call] : calls_) {
    const std::chrono::duration<double> waited = now - call.begin;
    if (!call.done || call.is_late || waited.count() < seconds) continue;
    call.is_late = true;
    std::string ranks;
    for (int n = 0; n < num_ranks_; ++n) {
      if (n != rank_ && call.arrived[n].empty()) ranks += " " + std::to_string(NumberOf(n));
    }
    warnings.push_back(NameOf(rank_) + " has waited for more than " +
                       std::to_string(static_cast<int>(waited.count())) + " s in '" + name +
                       "' for these ranks, which live but have not come there:" + ranks +
                       "; do all ranks take the same steps, in evaluation and saving too?");
  }
  return warnings;
}

// Assigns arrived messages to their calls.
void HostExchange::Collect() {
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    // Read before the messages: a rank posts all its messages before it says that it has ended.
    has_ended_[n] = transports_[n]->HasEnded(n);
    std::vector<MessagePtr> messages;
    if (!transports_[n]->TakePosted(n, &messages)) {
      end_ = "the exchange has ended: expected messages of " + NameOf(n) +
             ", got something else; do all ranks run the same version?";
      SetEnded(NameOf(n) + " sent what is no message");
      return;
    }
    for (MessagePtr& message : messages) {
      Call& call = calls_[std::string(message->name(), message->name_bytes)];
      call.arrived.resize(num_ranks_);
      call.arrived[n].push_back(std::move(message));
    }
  }
}

std::vector<HostExchange::Ended> HostExchange::FindEnded() {
  std::vector<Ended> ended;
  for (auto it = calls_.begin(); it != calls_.end();) {
    Call& call = it->second;
    Ended one;
    if (call.done && HasEnded(&call, &one)) ended.push_back(std::move(one));
    const bool is_idle =
        !call.done && std::all_of(call.arrived.begin(), call.arrived.end(),
                                  [](const auto& messages) { return messages.empty(); });
    it = is_idle ? calls_.erase(it) : std::next(it);
  }
  return ended;
}

// Returns whether a call has ended. ended: its result.
bool HostExchange::HasEnded(Call* call, Ended* ended) {
  bool is_complete = true;
  ended->error = end_;
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_ || !call->arrived[n].empty()) continue;
    is_complete = false;
    if (has_ended_[n] && ended->error.ok()) {
      ended->error = "the exchange has ended: " + NameOf(n) + " takes part no more" +
                     transports_[n]->ReasonOf(n) + WaitsIn(call->description);
    }
  }
  if (!is_complete && ended->error.ok()) return false;
  ended->done = std::move(call->done);
  call->done = nullptr;
  memory_->AddWaiting(-1);
  if (!ended->error.ok()) return true;
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - call->begin;
  use_.wait_seconds += waited.count();
  ended->error = DifferenceIn(*call);
  std::vector<MessagePtr> messages(num_ranks_);
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    messages[n] = std::move(call->arrived[n].front());
    call->arrived[n].pop_front();
  }
  if (!ended->error.ok()) return true;
  ended->inbox = std::make_shared<const Inbox>(shared_from_this(), std::move(messages));
  return true;
}

std::string HostExchange::DifferenceIn(const Call& call) const {
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    const Message* message = call.arrived[n].front().get();
    if (message->digest == call.description.digest) continue;
    return DifferenceOf(*call.description.text, transports_[n]->DescriptionOf(n, *message),
                        NumberOf(n));
  }
  return "";
}

}  // namespace group_embedding
