#include "exchange/host/message_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <ctime>

namespace group_embedding {
namespace {

// A limit on data read from another rank's memory: the number of messages in a list.
constexpr size_t kMaxMessages = size_t{1} << 20;

// Larger messages are rare (a table that is saved): their memory is given back to the system.
constexpr int64_t kKeptBytes = int64_t{256} << 20;

// Whether a text is within a rank's memory.
bool IsText(int64_t at, int64_t bytes) {
  return at >= 0 && bytes >= 0 && at <= SharedMemory::kBytes && bytes <= SharedMemory::kBytes - at;
}

// Allows the sender to reuse the space of a message.
void MarkRead(Message* message) { message->is_read.store(1, std::memory_order_release); }

// Wakes all that wait on a futex, in any process that maps the word.
void Wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

std::unique_ptr<MessageMemory> MessageMemory::Make(int rank, int num_ranks, Status* error) {
  if (num_ranks > kMaxRanks) {
    *error = "expected at most " + std::to_string(kMaxRanks) + " ranks, got " +
             std::to_string(num_ranks);
    return nullptr;
  }
  std::unique_ptr<MessageMemory> memory(new MessageMemory(rank, num_ranks));
  memory->memories_[rank] = SharedMemory::Make(error);
  if (memory->memories_[rank] == nullptr) return nullptr;
  constexpr int64_t kAlignment = FreeSpace::kAlignment;
  const int64_t board = SharedMemory::kReserved + static_cast<int64_t>(sizeof(Board));
  const int64_t begin = (board + kAlignment - 1) / kAlignment * kAlignment;
  memory->space_ = std::make_unique<FreeSpace>(begin, SharedMemory::kBytes);
  return memory;
}

Status MessageMemory::Map(int rank, const std::string& address) {
  Status status;
  memories_[rank] = SharedMemory::Map(address, &status);
  return status;
}

MessagePtr MessageMemory::NewMessage(const std::string& name, const CallDescription& description,
                                     int64_t bytes) {
  const int64_t text_at = OffsetOf(description);
  const int64_t text_bytes = text_at == 0 ? 0 : static_cast<int64_t>(description.text->size());
  const int64_t name_bytes = static_cast<int64_t>(name.size());
  const int64_t offset = space_->Take(Message::HeaderBytes(name_bytes) + bytes);
  if (offset < 0) return nullptr;
  Message* const message = new (memories_[rank_]->data() + offset)
      Message{0, bytes, name_bytes, description.digest, text_at, text_bytes, {0}};
  std::memcpy(message->name(), name.data(), name.size());
  sent_.push_back(offset);
  return MessagePtr(message, {MarkRead});
}

void MessageMemory::Post(int to, MessagePtr message, const CallDescription&) {
  std::atomic<int64_t>& newest = BoardOf(rank_)->newest[to];
  Message* const posted = message.release();  // the receiver marks it read
  const int64_t offset = reinterpret_cast<char*>(posted) - memories_[rank_]->data();
  posted->next = newest.load();
  while (!newest.compare_exchange_weak(posted->next, offset)) {
  }
}

bool MessageMemory::TakePosted(int from, std::vector<MessagePtr>* messages) {
  int64_t offset = BoardOf(from)->newest[rank_].exchange(0);  // the newest first
  for (; offset != 0; offset = messages->back()->next) {
    if (messages->size() == kMaxMessages || !IsMessage(from, offset)) return false;
    messages->emplace_back(MessageAt(from, offset), FreeMessage{MarkRead});
  }
  std::reverse(messages->begin(), messages->end());
  return true;
}

std::string MessageMemory::DescriptionOf(int from, const Message& message) {
  return std::string(memories_[from]->data() + message.text_at, message.text_bytes);
}

void MessageMemory::FreeRead() {
  const auto is_read = [this](int64_t offset) {
    if (MessageAt(rank_, offset)->is_read.load(std::memory_order_acquire) == 0) return false;
    const int64_t bytes = space_->Give(offset);
    if (bytes > kKeptBytes) memories_[rank_]->GiveBack(offset, bytes);
    return true;
  };
  sent_.erase(std::remove_if(sent_.begin(), sent_.end(), is_read), sent_.end());
}

void MessageMemory::SetEnded(const std::string& reason) {
  BoardOf(rank_)->reason_at = Keep(reason);
  BoardOf(rank_)->reason_bytes = static_cast<int64_t>(reason.size());
  BoardOf(rank_)->has_ended.store(1, std::memory_order_release);
}

std::string MessageMemory::ReasonOf(int from) {
  const int64_t at = BoardOf(from)->reason_at, bytes = BoardOf(from)->reason_bytes;
  if (at == 0 || bytes == 0 || !IsText(at, bytes) || bytes > Message::kMaxNameBytes) return "";
  return ": " + std::string(memories_[from]->data() + at, bytes);
}

void MessageMemory::WakeOthers() const {
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_ || memories_[n] == nullptr) continue;
    ++BoardOf(n)->wake_count;
    if (BoardOf(n)->num_waiting != 0) Wake(&BoardOf(n)->wake_count);
  }
}

void MessageMemory::WakeThis() const {
  ++BoardOf(rank_)->wake_count;
  Wake(&BoardOf(rank_)->wake_count);
}

void MessageMemory::WaitForNews(uint32_t seen, double most_seconds) const {
  const double whole = std::floor(most_seconds);
  const timespec most = {static_cast<time_t>(whole),
                         static_cast<long>((most_seconds - whole) * 1e9)};
  syscall(SYS_futex, &BoardOf(rank_)->wake_count, FUTEX_WAIT, seen, &most, nullptr, 0);
}

MessageMemory::Board* MessageMemory::BoardOf(int rank) const {
  return reinterpret_cast<Board*>(memories_[rank]->data() + SharedMemory::kReserved);
}

Message* MessageMemory::MessageAt(int rank, int64_t offset) const {
  return reinterpret_cast<Message*>(memories_[rank]->data() + offset);
}

bool MessageMemory::IsMessage(int rank, int64_t offset) const {
  constexpr int64_t kBegin = SharedMemory::kReserved + sizeof(Board);
  constexpr int64_t kEnd = SharedMemory::kBytes - static_cast<int64_t>(sizeof(Message));
  if (offset < kBegin || offset > kEnd || offset % FreeSpace::kAlignment != 0) return false;
  const Message& message = *MessageAt(rank, offset);
  if (message.name_bytes < 0 || message.name_bytes > Message::kMaxNameBytes) return false;
  if (!IsText(message.text_at, message.text_bytes)) return false;
  const int64_t data = offset + Message::HeaderBytes(message.name_bytes);
  return message.bytes >= 0 && message.bytes <= SharedMemory::kBytes - data;
}

// The offset of a description that other ranks may read; 0: there is no memory left for it.
int64_t MessageMemory::OffsetOf(const CallDescription& description) {
  const auto [found, is_new] = descriptions_.emplace(description.digest, 0);
  if (!is_new) return found->second;
  return found->second = Keep(*description.text);
}

// Copies a text into shared memory for ever, and returns its offset; 0: no memory is left.
int64_t MessageMemory::Keep(const std::string& text) {
  const int64_t offset = space_->Take(static_cast<int64_t>(text.size()) + 1);
  if (offset < 0) return 0;
  std::memcpy(memories_[rank_]->data() + offset, text.data(), text.size());
  return offset;
}

}  // namespace group_embedding
