#include "serving/lower/redis/redis_connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace group_embedding {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kLongestLine = 4096;
constexpr int kDeepest = 8;
constexpr char kOtherProtocol[] = "it speaks another protocol than Redis's";

bool ReadInteger(const char* begin, const char* end, int64_t* number) {
  const bool negative = begin < end && *begin == '-';
  begin += negative;
  if (begin == end || end - begin > 18) return false;
  int64_t value = 0;
  for (; begin < end; ++begin) {
    if (*begin < '0' || *begin > '9') return false;
    value = value * 10 + (*begin - '0');
  }
  *number = negative ? -value : value;
  return true;
}

}  // namespace

void AppendRedisString(const char* bytes, size_t count, std::string* to) {
  *to += '$';
  *to += std::to_string(count);
  to->append("\r\n").append(bytes, count).append("\r\n");
}

void AppendRedisCommand(const std::vector<std::string>& words, std::string* bytes) {
  *bytes += "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) AppendRedisString(word.data(), word.size(), bytes);
}

std::unique_ptr<RedisConnection> RedisConnection::Open(const RedisAddress& address,
                                                       const RedisOptions& options,
                                                       RedisDeadline deadline, Status* error) {
  std::unique_ptr<RedisSocket> socket = RedisSocket::Connect(address, deadline, error);
  if (socket == nullptr) return nullptr;
  std::unique_ptr<RedisConnection> opened(new RedisConnection(std::move(socket)));
  if (options.tls) {
    opened->tls_ = MakeTlsSession(options, address.host, error);
    if (error->ok()) *error = opened->Shake(deadline);
  }
  if (error->ok()) *error = opened->Greet(options, deadline);
  if (!error->ok()) return nullptr;
  return opened;
}

RedisConnection::RedisConnection(std::unique_ptr<RedisSocket> socket)
    : socket_(std::move(socket)), buffer_(kBufferBytes) {}

Status RedisConnection::Greet(const RedisOptions& options, RedisDeadline deadline) {
  std::string bytes;
  int expected = 0;
  if (!options.password.empty()) {
    std::vector<std::string> words = {"AUTH"};
    if (!options.user.empty()) words.push_back(options.user);
    words.push_back(options.password);
    AppendRedisCommand(words, &bytes);
    ++expected;
  }
  if (options.database != 0) {
    AppendRedisCommand({"SELECT", std::to_string(options.database)}, &bytes);
    ++expected;
  }
  Status status = bytes.empty() ? Status() : Send(bytes, deadline);
  for (; expected > 0 && status.ok(); --expected) {
    RedisReply reply;
    status = Take(&reply, deadline);
    if (status.ok() && reply.IsError()) status = reply.text;
    if (status.ok() && reply.text != "OK") status = Broken(kOtherProtocol);
  }
  return status;
}

Status RedisConnection::Shake(RedisDeadline deadline) {
  for (bool done = false;;) {
    Status status = tls_->Shake(&done);
    encrypted_.clear();
    tls_->MoveEncrypted(&encrypted_);  // the server gets an error, too
    Status sent = SendRaw(encrypted_.data(), encrypted_.size(), deadline);
    if (!status.ok()) return Broken(status.message());
    if (done || !sent.ok()) return sent;
    char bytes[16384];
    size_t count = 0;
    status = ReceiveRaw(bytes, sizeof(bytes), &count, deadline);
    if (status.ok()) status = tls_->TakeEncrypted(bytes, count);
    if (!status.ok()) return Broken(status.message());
  }
}

bool RedisConnection::IsSilent() const { return !broken_ && begin_ == end_ && socket_->IsSilent(); }

Status RedisConnection::Broken(const std::string& message) {
  broken_ = true;
  return message;
}

Status RedisConnection::SendRaw(const char* bytes, size_t count, RedisDeadline deadline) {
  Status status = socket_->Send(bytes, count, deadline);
  return status.ok() ? status : Broken(status.message());
}

Status RedisConnection::ReceiveRaw(char* bytes, size_t most, size_t* count,
                                   RedisDeadline deadline) {
  Status status = socket_->Receive(bytes, most, count, deadline);
  return status.ok() ? status : Broken(status.message());
}

Status RedisConnection::Send(const std::string& bytes, RedisDeadline deadline) {
  if (tls_ == nullptr) return SendRaw(bytes.data(), bytes.size(), deadline);
  Status status = tls_->Write(bytes.data(), bytes.size());
  if (!status.ok()) return Broken(status.message());
  encrypted_.clear();
  tls_->MoveEncrypted(&encrypted_);
  return SendRaw(encrypted_.data(), encrypted_.size(), deadline);
}

Status RedisConnection::Receive(RedisDeadline deadline) {
  size_t count = 0;
  if (tls_ == nullptr) {
    Status status = ReceiveRaw(buffer_.data() + end_, buffer_.size() - end_, &count, deadline);
    end_ += count;
    return status;
  }
  for (;;) {
    Status status;
    bool ended = false;
    count = tls_->Read(buffer_.data() + end_, buffer_.size() - end_, &ended, &status);
    end_ += count;
    if (ended) return Broken("the server closed the connection");
    if (!status.ok()) return Broken(status.message());
    if (count > 0) return {};
    encrypted_.resize(kBufferBytes);
    status = ReceiveRaw(encrypted_.data(), encrypted_.size(), &count, deadline);
    if (status.ok()) status = tls_->TakeEncrypted(encrypted_.data(), count);
    if (!status.ok()) return Broken(status.message());
  }
}

Status RedisConnection::Need(size_t count, RedisDeadline deadline) {
  while (end_ - begin_ < count) {
    if (begin_ == end_) begin_ = end_ = 0;
    if (begin_ + count > buffer_.size() || end_ == buffer_.size()) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      const size_t wanted = std::max(count, kBufferBytes);
      if (buffer_.size() < wanted) buffer_.resize(wanted);
    }
    Status status = Receive(deadline);
    if (!status.ok()) return status;
  }
  return {};
}

Status RedisConnection::TakeLine(const char** line, const char** line_end, RedisDeadline deadline) {
  for (size_t searched = 0;;) {
    const char* from = buffer_.data() + begin_ + searched;
    const auto* found = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_ - searched));
    if (found != nullptr) {
      *line = buffer_.data() + begin_;
      *line_end = found - 1;
      begin_ = found + 1 - buffer_.data();
      const bool is_line = *line_end > *line && **line_end == '\r';
      return is_line ? Status() : Broken(kOtherProtocol);
    }
    searched = end_ - begin_;
    if (searched > kLongestLine) return Broken(kOtherProtocol);
    Status status = Need(searched + 1, deadline);
    if (!status.ok()) return status;
  }
}

Status RedisConnection::TakeHeader(RedisReply* header, RedisDeadline deadline) {
  const char *line = nullptr, *line_end = nullptr;
  Status status = TakeLine(&line, &line_end, deadline);
  if (!status.ok()) return status;
  header->type = *line;
  if (*line == '+' || *line == '-') {
    header->text.assign(line + 1, line_end);
    return {};
  }
  const bool is_known = *line == ':' || *line == '$' || *line == '*';
  if (is_known && ReadInteger(line + 1, line_end, &header->number)) return {};
  return Broken(kOtherProtocol);
}

Status RedisConnection::TakeBytes(int64_t count, bool* found, char* bytes, RedisDeadline deadline) {
  const char *line = nullptr, *line_end = nullptr;
  int64_t size = 0;
  Status status = TakeLine(&line, &line_end, deadline);
  if (!status.ok()) return status;
  if (*line != '$' || !ReadInteger(line + 1, line_end, &size)) {
    return Broken("expected a value, got another reply");
  }
  *found = size >= 0;
  if (!*found) return {};
  if (size != count) {
    return Broken("expected a value of " + std::to_string(count) + " bytes, got " +
                  std::to_string(size));
  }
  status = Need(count + 2, deadline);
  if (!status.ok()) return status;
  std::memcpy(bytes, buffer_.data() + begin_, count);
  const char* after = buffer_.data() + begin_ + count;
  begin_ += count + 2;
  if (after[0] != '\r' || after[1] != '\n') return Broken(kOtherProtocol);
  return {};
}

Status RedisConnection::Take(RedisReply* reply, RedisDeadline deadline) {
  int64_t left = kMostBytes;
  return TakeElement(0, &left, reply, deadline);
}

Status RedisConnection::TakeRest(const RedisReply& header, RedisReply* reply,
                                 RedisDeadline deadline) {
  int64_t left = kMostBytes;
  *reply = header;
  return TakeContent(0, &left, reply, deadline);
}

Status RedisConnection::TakeElement(int depth, int64_t* left, RedisReply* reply,
                                    RedisDeadline deadline) {
  Status status = TakeHeader(reply, deadline);
  return status.ok() ? TakeContent(depth, left, reply, deadline) : status;
}

Status RedisConnection::TakeContent(int depth, int64_t* left, RedisReply* reply,
                                    RedisDeadline deadline) {
  if (reply->IsNull()) return {};
  if (reply->type != '$' && reply->type != '*') return {};
  *left -= reply->number;
  if (*left < 0 || depth > kDeepest) return Broken("a reply that is too large");
  if (reply->type == '$') {
    Status status = Need(reply->number + 2, deadline);
    if (!status.ok()) return status;
    reply->text.assign(buffer_.data() + begin_, reply->number);
    begin_ += reply->number + 2;
    return {};
  }
  for (int64_t i = 0; i < reply->number; ++i) {
    Status status = TakeElement(depth + 1, left, &reply->elements.emplace_back(), deadline);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace group_embedding
