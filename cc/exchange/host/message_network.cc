#include "exchange/host/message_network.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace group_embedding {
namespace {

constexpr uint64_t kEvent = ~uint64_t{0};  // of epoll: something was posted, or all is over
constexpr int kMaxTurns = 64;              // reads of a socket before the others have their turn

void Delete(Message* message) {
  message->~Message();
  ::operator delete(message, std::align_val_t{Message::kAlignment});
}

// Null: there is no memory for it.
MessagePtr Allocate(int64_t name_bytes, int64_t bytes, uint64_t digest) {
  void* const memory = ::operator new(static_cast<size_t>(Message::HeaderBytes(name_bytes) + bytes),
                                      std::align_val_t{Message::kAlignment}, std::nothrow);
  if (memory == nullptr) return nullptr;
  return MessagePtr(new (memory) Message{0, bytes, name_bytes, digest, 0, 0, {0}}, {Delete});
}

// Whether a read or write that moved no byte may be tried again later.
bool MayGoOn() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

void MessageNetwork::Places::Add(void* data, int64_t bytes) {
  if (bytes > 0) places_[end_++] = {data, static_cast<size_t>(bytes)};
}

msghdr MessageNetwork::Places::Header() {
  msghdr header = {};
  header.msg_iov = places_.data() + begin_;
  header.msg_iovlen = end_ - begin_;
  return header;
}

void MessageNetwork::Places::Advance(size_t bytes) {
  for (; begin_ < end_ && bytes >= places_[begin_].iov_len; ++begin_) {
    bytes -= places_[begin_].iov_len;
  }
  if (bytes == 0) return;
  places_[begin_].iov_base = static_cast<char*>(places_[begin_].iov_base) + bytes;
  places_[begin_].iov_len -= bytes;
}

bool MessageNetwork::Places::Read(int socket) {
  msghdr header = Header();
  const ssize_t bytes = recvmsg(socket, &header, MSG_DONTWAIT);
  if (bytes > 0) Advance(static_cast<size_t>(bytes));
  return bytes > 0 || (bytes < 0 && MayGoOn());
}

bool MessageNetwork::Places::Write(int socket) {
  const msghdr header = Header();
  const ssize_t bytes = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (bytes > 0) Advance(static_cast<size_t>(bytes));
  return bytes >= 0 || MayGoOn();
}

MessageNetwork::MessageNetwork(const std::vector<int>& sockets, std::function<void()> wake)
    : wake_(std::move(wake)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      connections_(sockets.size()) {
  epoll_event event = {EPOLLIN, {.u64 = kEvent}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &event);
  for (size_t n = 0; n < sockets.size(); ++n) {
    connections_[n].socket = sockets[n];
    connections_[n].to_read.Add(&connections_[n].frame, sizeof(Frame));
    if (sockets[n] < 0) continue;
    event.data.u64 = n;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, sockets[n], &event);
  }
  thread_ = std::thread([this] { Run(); });
}

MessageNetwork::~MessageNetwork() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  Wake();
  thread_.join();
  for (const Connection& connection : connections_) {
    if (connection.socket >= 0) close(connection.socket);
  }
  close(event_);
  close(epoll_);
}

MessagePtr MessageNetwork::NewMessage(const std::string& name, const CallDescription& description,
                                      int64_t bytes) {
  if (bytes > kMaxBytes) return nullptr;
  MessagePtr message = Allocate(static_cast<int64_t>(name.size()), bytes, description.digest);
  if (message != nullptr) std::memcpy(message->name(), name.data(), name.size());
  return message;
}

void MessageNetwork::Post(int to, MessagePtr message, const CallDescription& description) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Connection& connection = connections_[to];
    if (connection.is_closed) return;
    Outgoing outgoing = {{kMagic, message->digest, message->bytes, message->name_bytes, 0},
                         std::move(message),
                         nullptr};
    if (connection.sent_texts.insert(description.digest).second) {
      outgoing.text = description.text;
      outgoing.frame.text_bytes = static_cast<int64_t>(description.text->size());
    }
    connection.posted.push_back(std::move(outgoing));
    ++num_unsent_;
  }
  Wake();
}

bool MessageNetwork::TakePosted(int from, std::vector<MessagePtr>* messages) {
  std::lock_guard<std::mutex> lock(mutex_);
  *messages = std::exchange(connections_[from].received, {});
  return !connections_[from].is_wrong;
}

std::string MessageNetwork::DescriptionOf(int from, const Message& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = connections_[from].texts.find(message.digest);
  return found == connections_[from].texts.end() ? "" : found->second;
}

void MessageNetwork::SetEnded(const std::string& reason) {
  const auto text = std::make_shared<const std::string>(reason);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Connection& connection : connections_) {
      if (connection.socket < 0 || connection.is_closed) continue;
      const int64_t text_bytes = static_cast<int64_t>(text->size());
      connection.posted.push_back({{kMagic, 0, kEnd, 0, text_bytes}, nullptr, text});
      ++num_unsent_;
    }
  }
  Wake();
}

bool MessageNetwork::HasEnded(int from) {
  std::lock_guard<std::mutex> lock(mutex_);
  return connections_[from].has_ended;
}

std::string MessageNetwork::ReasonOf(int from) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string& reason = connections_[from].reason;
  return reason.empty() ? "" : ": " + reason;
}

void MessageNetwork::WaitUntilReceived(double most_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(most_seconds);
  auto pause = std::chrono::microseconds(200);
  while (!IsAllReceived() && Clock::now() < until) {
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(20000));
  }
}

bool MessageNetwork::IsAllReceived() {
  if (num_unsent_ > 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(connections_.begin(), connections_.end(), [](const Connection& connection) {
    int bytes = 0;  // not acknowledged
    if (connection.socket < 0 || connection.is_closed) return true;
    return ioctl(connection.socket, SIOCOUTQ, &bytes) != 0 || bytes == 0;
  });
}

void MessageNetwork::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_, &one, sizeof(one));
}

void MessageNetwork::Run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int num_events = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < num_events; ++i) {
      if (events[i].data.u64 == kEvent) {
        uint64_t times;
        [[maybe_unused]] const ssize_t count = read(event_, &times, sizeof(times));
        continue;
      }
      Connection* const connection = &connections_[events[i].data.u64];
      if (events[i].events & EPOLLOUT) Write(connection);
      if (events[i].events & ~EPOLLOUT) Read(connection);
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_over_) return;
    }
    TakeNewlyPosted();
  }
}

void MessageNetwork::TakeNewlyPosted() {
  for (Connection& connection : connections_) {
    std::deque<Outgoing> posted;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      posted.swap(connection.posted);
      if (posted.empty()) continue;
      if (connection.is_closed) {
        num_unsent_ -= static_cast<int64_t>(posted.size());
        continue;
      }
    }
    std::move(posted.begin(), posted.end(), std::back_inserter(connection.writing));
    Write(&connection);
  }
}

void MessageNetwork::Write(Connection* connection) {
  std::deque<Outgoing>& writing = connection->writing;
  Places& places = connection->to_write;
  while (!writing.empty()) {
    Outgoing& first = writing.front();
    if (places.IsDone()) {
      places.Clear();
      places.Add(&first.frame, sizeof(Frame));
      if (first.message) places.Add(first.message->name(), first.frame.name_bytes);
      if (first.text) places.Add(const_cast<char*>(first.text->data()), first.frame.text_bytes);
      if (first.message) places.Add(first.message->data(), first.frame.bytes);
    }
    if (!places.Write(connection->socket)) {
      // What the other rank sent before is still read, and its end found there.
      num_unsent_ -= static_cast<int64_t>(writing.size());
      writing.clear();
      break;
    }
    if (!places.IsDone()) return ReportSpace(connection, true);
    writing.pop_front();
    --num_unsent_;
  }
  places.Clear();
  ReportSpace(connection, false);
}

void MessageNetwork::ReportSpace(Connection* connection, bool wanted) {
  if (connection->waits_for_space == wanted) return;
  connection->waits_for_space = wanted;
  const uint64_t rank = static_cast<uint64_t>(connection - connections_.data());
  const uint32_t events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  epoll_event event = {events, {.u64 = rank}};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection->socket, &event);
}

void MessageNetwork::Read(Connection* connection) {
  if (connection->is_closed) return;
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    errno = 0;
    const bool goes_on = connection->to_read.Read(connection->socket);
    if (!goes_on) return Close(connection, "its connection closed");
    if (!connection->to_read.IsDone()) {
      if (errno != 0) return;  // there is no more for now
      continue;
    }
    if (!connection->has_frame && !BeginBody(connection)) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        connection->is_wrong = true;
      }
      return Close(connection, "it sent what is no message");
    }
    if (connection->to_read.IsDone()) EndBody(connection);
  }
}

// Makes place for what follows a frame. False: it is no frame of a rank, or there is no memory.
bool MessageNetwork::BeginBody(Connection* connection) {
  const Frame& frame = connection->frame;
  const auto is_in = [](int64_t bytes, int64_t most) { return bytes >= 0 && bytes <= most; };
  const bool is_end = frame.bytes == kEnd;
  if (frame.magic != kMagic || !is_in(frame.text_bytes, kMaxTextBytes)) return false;
  if (!is_end && !is_in(frame.bytes, kMaxBytes)) return false;
  if (!is_in(frame.name_bytes, is_end ? 0 : Message::kMaxNameBytes)) return false;
  connection->has_frame = true;
  connection->to_read.Clear();
  connection->text.resize(frame.text_bytes);
  if (!is_end) {
    connection->message = Allocate(frame.name_bytes, frame.bytes, frame.digest);
    if (connection->message == nullptr) return false;
    connection->to_read.Add(connection->message->name(), frame.name_bytes);
  }
  connection->to_read.Add(connection->text.data(), frame.text_bytes);
  if (!is_end) connection->to_read.Add(connection->message->data(), frame.bytes);
  return true;
}

// A whole message, or an end, has come.
void MessageNetwork::EndBody(Connection* connection) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (connection->frame.bytes == kEnd) {
      connection->has_ended = true;
      connection->reason = connection->text;
    } else {
      if (connection->frame.text_bytes > 0) {
        connection->texts[connection->frame.digest] = connection->text;
      }
      connection->received.push_back(std::move(connection->message));
      connection->is_wrong |= connection->received.size() > kMaxMessages;
      connection->is_wrong |= connection->texts.size() > kMaxTexts;
    }
  }
  connection->has_frame = false;
  connection->to_read.Clear();
  connection->to_read.Add(&connection->frame, sizeof(Frame));
  wake_();
}

void MessageNetwork::Close(Connection* connection, const std::string& reason) {
  num_unsent_ -= static_cast<int64_t>(connection->writing.size());
  connection->writing.clear();
  epoll_ctl(epoll_, EPOLL_CTL_DEL, connection->socket, nullptr);
  shutdown(connection->socket, SHUT_RDWR);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    connection->is_closed = true;
    if (!connection->has_ended) connection->reason = reason;
    connection->has_ended = true;
  }
  wake_();
}

}  // namespace group_embedding
