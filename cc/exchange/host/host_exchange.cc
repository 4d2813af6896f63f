#include "exchange/host/host_exchange.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstring>
#include <ctime>
#include <thread>

#include "exchange/host/messages.h"

namespace group_embedding {

// The header of a message in the sender's memory. The name follows it, and then, from a multiple of
// 64 bytes on, the data.
struct Message {
  int64_t next;  // offset of the message posted before it to the same rank; 0: none
  int64_t bytes;
  int64_t name_bytes;
  uint64_t digest;              // of the call's description
  int64_t text_at, text_bytes;  // the description in the sender's memory
  std::atomic<uint32_t> is_read;
};

struct HostExchange::Board {
  static constexpr int kMaxRanks = 1024;

  std::atomic<uint32_t> wake_count;        // a futex: counts messages to this rank, and ends
  std::atomic<uint32_t> left;              // this rank has ended
  int64_t reason_at, reason_bytes;         // why, set before `left`; 0: unknown
  std::atomic<uint32_t> num_waiting;       // calls of this rank that wait
  std::atomic<int64_t> newest[kMaxRanks];  // offset of the newest message to each rank; 0: none
};

namespace {

// Limits on data read from another rank's memory: the length of a node's name, and the number of
// messages in a list.
constexpr int64_t kMaxNameBytes = int64_t{1} << 20;
constexpr size_t kMaxMessages = size_t{1} << 20;

// Larger messages are rare (a table that is saved): their memory is given back to the system.
constexpr int64_t kKeptBytes = int64_t{256} << 20;

int64_t RoundUp(int64_t bytes) {
  constexpr int64_t kAlignment = FreeSpace::kAlignment;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

char* NameOf(Message* message) { return reinterpret_cast<char*>(message + 1); }

char* DataOf(Message* message) {
  return reinterpret_cast<char*>(message) + RoundUp(sizeof(Message) + message->name_bytes);
}

// Allows the sender to reuse the messages' space.
void MarkRead(const std::vector<Message*>& messages) {
  for (Message* message : messages) {
    if (message != nullptr) message->is_read.store(1, std::memory_order_release);
  }
}

// Waits on a futex, which any process that maps the word may wake.
void Sleep(std::atomic<uint32_t>* word, uint32_t while_it_is, double most_seconds) {
  const double whole = std::floor(most_seconds);
  const timespec most = {static_cast<time_t>(whole),
                         static_cast<long>((most_seconds - whole) * 1e9)};
  syscall(SYS_futex, word, FUTEX_WAIT, while_it_is, &most, nullptr, 0);
}

std::string WaitsIn(const CallDescription& description) {
  if (description.text->empty()) return "";
  return "; this rank waits for it in " + description.text->substr(0, description.text->find('\n'));
}

void Wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

CallDescription::CallDescription(std::string text)
    : text(std::make_shared<const std::string>(std::move(text))), digest(DigestOf(*this->text)) {}

char* Outgoing::data(int rank) const { return DataOf(messages[rank]); }

Inbox::~Inbox() { MarkRead(messages_); }

const char* Inbox::data(int rank) const {
  return messages_[rank] == nullptr ? nullptr : DataOf(messages_[rank]);
}

int64_t Inbox::bytes(int rank) const {
  return messages_[rank] == nullptr ? 0 : messages_[rank]->bytes;
}

std::shared_ptr<HostExchange> HostExchange::Make(int rank, int num_ranks, Status* error) {
  if (num_ranks > Board::kMaxRanks) {
    *error = "expected at most " + std::to_string(Board::kMaxRanks) + " ranks on a host, got " +
             std::to_string(num_ranks);
    return nullptr;
  }
  std::shared_ptr<HostExchange> exchange(new HostExchange(rank, num_ranks));
  exchange->memories_.resize(num_ranks);
  exchange->left_.resize(num_ranks);
  exchange->memories_[rank] = SharedMemory::Make(error);
  if (exchange->memories_[rank] == nullptr) return nullptr;
  const int64_t begin = RoundUp(SharedMemory::kReserved + sizeof(Board));
  exchange->space_ = std::make_unique<FreeSpace>(begin, SharedMemory::kBytes);
  return exchange;
}

Status HostExchange::Join(const std::vector<std::string>& addresses, LateWarning late) {
  Status status;
  if (static_cast<int>(addresses.size()) != num_ranks_) {
    return "expected the addresses of " + std::to_string(num_ranks_) + " ranks, got " +
           std::to_string(addresses.size());
  }
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    memories_[n] = SharedMemory::Map(addresses[n], &status);
    if (memories_[n] == nullptr) return status.In("rank " + std::to_string(n) + ": ");
  }
  std::thread([self = shared_from_this(), late = std::move(late)] { self->Listen(late); }).detach();
  return {};
}

Status HostExchange::Prepare(const std::string& name, const CallDescription& description,
                             const std::vector<int64_t>& bytes, Outgoing* outgoing) {
  std::lock_guard<std::mutex> lock(mutex_);
  FreeRead();
  const int64_t text_at = OffsetOf(description);
  const int64_t text_bytes = text_at == 0 ? 0 : static_cast<int64_t>(description.text->size());
  outgoing->name = name;
  outgoing->description = description;
  outgoing->messages.assign(num_ranks_, nullptr);
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    const int64_t name_bytes = static_cast<int64_t>(name.size());
    const int64_t offset = space_->Take(RoundUp(sizeof(Message) + name_bytes) + bytes[n]);
    if (offset < 0) {
      Discard(*outgoing);
      return "expected all that ranks send at a time to fit " +
             std::to_string(SharedMemory::kBytes >> 30) + " GiB, got " + std::to_string(bytes[n]) +
             " bytes more for rank " + std::to_string(n) + "; use smaller batches";
    }
    Message* message = outgoing->messages[n] = new (memories_[rank_]->data() + offset)
        Message{0, bytes[n], name_bytes, description.digest, text_at, text_bytes, {0}};
    std::memcpy(NameOf(message), name.data(), name.size());
    sent_.push_back(offset);
  }
  return {};
}

void HostExchange::Send(const Outgoing& outgoing, Done done) {
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
      Discard(outgoing);
    } else {
      call.arrived.resize(num_ranks_);
      call.done = std::move(done);
      call.description = outgoing.description;
      call.begin = std::chrono::steady_clock::now();
      call.is_late = false;
      ++BoardOf(rank_)->num_waiting;  // before Collect, so that no message is missed
      for (int n = 0; n < num_ranks_; ++n) {
        if (n != rank_) Post(n, outgoing.messages[n]);
      }
      Collect();
      ended = FindEnded();
    }
  }
  WakeOthers();
  for (Ended& one : ended) one.done(one.error, std::move(one.inbox));
}

void HostExchange::Discard(const Outgoing& outgoing) { MarkRead(outgoing.messages); }

void HostExchange::End(const std::string& reason) {
  std::vector<Ended> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!end_.empty()) return;
    end_ = "the exchange has ended: " + reason;
    ended = FindEnded();
    BoardOf(rank_)->reason_at = Keep(reason);
    BoardOf(rank_)->reason_bytes = static_cast<int64_t>(reason.size());
  }
  BoardOf(rank_)->left.store(1, std::memory_order_release);
  WakeOthers();
  ++BoardOf(rank_)->wake_count;
  Wake(&BoardOf(rank_)->wake_count);
  for (Ended& one : ended) one.done(one.error, nullptr);
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

HostExchange::Board* HostExchange::BoardOf(int rank) const {
  return reinterpret_cast<Board*>(memories_[rank]->data() + SharedMemory::kReserved);
}

Message* HostExchange::MessageAt(int rank, int64_t offset) const {
  return reinterpret_cast<Message*>(memories_[rank]->data() + offset);
}

void HostExchange::WakeOthers() const {
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_ || memories_[n] == nullptr) continue;
    ++BoardOf(n)->wake_count;
    if (BoardOf(n)->num_waiting != 0) Wake(&BoardOf(n)->wake_count);
  }
}

void HostExchange::Listen(const LateWarning& late) {
  std::atomic<uint32_t>* wake_count = &BoardOf(rank_)->wake_count;
  while (true) {
    const uint32_t seen = wake_count->load();
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
    if (has_ended) WakeOthers();
    for (Ended& one : ended) one.done(one.error, std::move(one.inbox));
    for (const std::string& warning : warnings) late.warn(warning);
    Sleep(wake_count, seen, late.seconds);
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
      if (n != rank_ && call.arrived[n].empty()) ranks += " " + std::to_string(n);
    }
    warnings.push_back("rank " + std::to_string(rank_) + " has waited for more than " +
                       std::to_string(static_cast<int>(waited.count())) + " s in '" + name +
                       "' for these ranks, which live but have not come there:" + ranks +
                       "; do all ranks take the same steps, in evaluation and saving too?");
  }
  return warnings;
}

void HostExchange::FreeRead() {
  const auto is_read = [this](int64_t offset) {
    if (MessageAt(rank_, offset)->is_read.load(std::memory_order_acquire) == 0) return false;
    const int64_t bytes = space_->Give(offset);
    if (bytes > kKeptBytes) memories_[rank_]->GiveBack(offset, bytes);
    return true;
  };
  sent_.erase(std::remove_if(sent_.begin(), sent_.end(), is_read), sent_.end());
}

// The offset of a description that other ranks may read; 0: there is no memory left for it.
int64_t HostExchange::OffsetOf(const CallDescription& description) {
  const auto [found, is_new] = descriptions_.emplace(description.digest, 0);
  if (!is_new) return found->second;
  return found->second = Keep(*description.text);
}

// Copies a text into shared memory for ever, and returns its offset; 0: no memory is left.
int64_t HostExchange::Keep(const std::string& text) {
  const int64_t offset = space_->Take(static_cast<int64_t>(text.size()) + 1);
  if (offset < 0) return 0;
  std::memcpy(memories_[rank_]->data() + offset, text.data(), text.size());
  return offset;
}

std::string HostExchange::ReasonOf(int rank) const {
  const Board* board = BoardOf(rank);
  const int64_t at = board->reason_at, bytes = board->reason_bytes;
  if (at <= 0 || at > SharedMemory::kBytes || bytes < 0 || bytes > kMaxNameBytes ||
      bytes > SharedMemory::kBytes - at) {
    return "";
  }
  return ": " + std::string(memories_[rank]->data() + at, bytes);
}

void HostExchange::Post(int to, Message* message) {
  std::atomic<int64_t>& newest = BoardOf(rank_)->newest[to];
  const int64_t offset = reinterpret_cast<char*>(message) - memories_[rank_]->data();
  message->next = newest.load();
  while (!newest.compare_exchange_weak(message->next, offset)) {
  }
}

bool HostExchange::IsMessage(int rank, int64_t offset) const {
  constexpr int64_t kBegin = SharedMemory::kReserved + sizeof(Board);
  constexpr int64_t kEnd = SharedMemory::kBytes - static_cast<int64_t>(sizeof(Message));
  if (offset < kBegin || offset > kEnd || offset % FreeSpace::kAlignment != 0) return false;
  const Message& message = *MessageAt(rank, offset);
  if (message.name_bytes < 0 || message.name_bytes > kMaxNameBytes) return false;
  if (message.text_at < 0 || message.text_bytes < 0 || message.text_at > SharedMemory::kBytes ||
      message.text_bytes > SharedMemory::kBytes - message.text_at) {
    return false;
  }
  const int64_t data = offset + RoundUp(sizeof(Message) + message.name_bytes);
  return message.bytes >= 0 && message.bytes <= SharedMemory::kBytes - data;
}

bool HostExchange::TakePosted(int n, std::vector<Message*>* messages) {
  int64_t offset = BoardOf(n)->newest[rank_].exchange(0);
  for (; offset != 0; offset = messages->back()->next) {
    if (messages->size() == kMaxMessages || !IsMessage(n, offset)) return false;
    messages->push_back(MessageAt(n, offset));
  }
  return true;
}

// Assigns arrived messages to their calls.
void HostExchange::Collect() {
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    // Read before the messages: a rank posts all its messages before it sets `left`.
    left_[n] = BoardOf(n)->left.load(std::memory_order_acquire) != 0;
    std::vector<Message*> messages;  // the newest first
    if (!TakePosted(n, &messages)) {
      end_ = "the exchange has ended: expected messages in the memory of rank " +
             std::to_string(n) + ", got something else; do all ranks run the same version?";
      BoardOf(rank_)->left.store(1, std::memory_order_release);
      return;
    }
    for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
      Call& call = calls_[std::string(NameOf(*message), (*message)->name_bytes)];
      call.arrived.resize(num_ranks_);
      call.arrived[n].push_back(*message);
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
    if (left_[n] && ended->error.ok()) {
      ended->error = "the exchange has ended: rank " + std::to_string(n) + " takes part no more" +
                     ReasonOf(n) + WaitsIn(call->description);
    }
  }
  if (!is_complete && ended->error.ok()) return false;
  ended->done = std::move(call->done);
  call->done = nullptr;
  --BoardOf(rank_)->num_waiting;
  if (!ended->error.ok()) return true;
  ended->error = DifferenceIn(*call);
  std::vector<Message*> messages(num_ranks_, nullptr);
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    messages[n] = call->arrived[n].front();
    call->arrived[n].pop_front();
  }
  if (!ended->error.ok()) {
    MarkRead(messages);
    return true;
  }
  ended->inbox = std::make_shared<const Inbox>(shared_from_this(), std::move(messages));
  return true;
}

std::string HostExchange::DifferenceIn(const Call& call) const {
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    const Message* message = call.arrived[n].front();
    if (message->digest == call.description.digest) continue;
    const std::string text(memories_[n]->data() + message->text_at, message->text_bytes);
    return DifferenceOf(*call.description.text, text, n);
  }
  return "";
}

}  // namespace group_embedding
