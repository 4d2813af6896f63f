// RedisConnection: one connection to a Redis server, and Redis's protocol (RESP 2).
//
// It is the project's own, since a reply of rows is copied from the received bytes to the lookup's
// rows as it arrives: hiredis allocates an object for each row, and Debian 12's has no TLS.
//
// Every call ends by its deadline. After an error of the connection, or of the protocol, the
// connection is of no more use (IsBroken). One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "serving/lower/redis/redis_options.h"
#include "serving/lower/redis/redis_socket.h"
#include "serving/lower/redis/tls_session.h"

namespace group_embedding {

// A reply, or the beginning of one.
struct RedisReply {
  char type = 0;       // '+' status, '-' error, ':' number, '$' string, '*' array
  int64_t number = 0;  // of ':'; bytes of '$' and elements of '*', -1: null
  std::string text;    // of '+' and '-', and of '$' once it is read whole
  std::vector<RedisReply> elements;

  bool IsError() const { return type == '-'; }
  bool IsNull() const { return number < 0 && (type == '$' || type == '*'); }
};

// Appends a command in the protocol's form.
void AppendRedisCommand(const std::vector<std::string>& words, std::string* bytes);
void AppendRedisString(const char* bytes, size_t count, std::string* to);

class RedisConnection {
 public:
  // Connects, and gives the password. Null on an error.
  static std::unique_ptr<RedisConnection> Open(const RedisAddress& address,
                                               const RedisOptions& options, RedisDeadline deadline,
                                               Status* error);

  bool IsBroken() const { return broken_; }
  // That nothing has arrived since the last reply: the server has not closed the connection.
  bool IsSilent() const;

  Status Send(const std::string& bytes, RedisDeadline deadline);
  // A whole reply, of at most `kMostBytes`.
  Status Take(RedisReply* reply, RedisDeadline deadline);
  // What follows the first line.
  Status TakeRest(const RedisReply& header, RedisReply* reply, RedisDeadline deadline);
  // The first line of a reply; the elements of an array are replies that follow.
  Status TakeHeader(RedisReply* header, RedisDeadline deadline);
  // A string of `count` bytes, or null: then `found` is false.
  Status TakeBytes(int64_t count, bool* found, char* bytes, RedisDeadline deadline);

 private:
  static constexpr int64_t kMostBytes = int64_t{512} << 20;

  explicit RedisConnection(std::unique_ptr<RedisSocket> socket);
  Status Greet(const RedisOptions& options, RedisDeadline deadline);
  Status Shake(RedisDeadline deadline);
  Status SendRaw(const char* bytes, size_t count, RedisDeadline deadline);
  // At least one byte is received.
  Status Receive(RedisDeadline deadline);
  Status ReceiveRaw(char* bytes, size_t most, size_t* count, RedisDeadline deadline);
  // Until `count` bytes are in the buffer.
  Status Need(size_t count, RedisDeadline deadline);
  // A line, which is in the buffer until more is received; not its end.
  Status TakeLine(const char** line, const char** line_end, RedisDeadline deadline);
  Status TakeElement(int depth, int64_t* left, RedisReply* reply, RedisDeadline deadline);
  Status TakeContent(int depth, int64_t* left, RedisReply* reply, RedisDeadline deadline);
  Status Broken(const std::string& message);

  const std::unique_ptr<RedisSocket> socket_;
  bool broken_ = false;
  std::unique_ptr<TlsSession> tls_;
  std::vector<char> encrypted_;
  std::vector<char> buffer_;  // [begin_, end_): received, not taken
  size_t begin_ = 0, end_ = 0;
};

}  // namespace group_embedding
