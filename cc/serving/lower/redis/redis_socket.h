// RedisSocket: bytes to and from a server. Every call ends by its deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "core/status.h"
#include "serving/lower/redis/redis_options.h"

namespace group_embedding {

using RedisDeadline = std::chrono::steady_clock::time_point;

RedisDeadline RedisDeadlineIn(double seconds);

class RedisSocket {
 public:
  static std::unique_ptr<RedisSocket> Connect(const RedisAddress& address, RedisDeadline deadline,
                                              Status* error);
  ~RedisSocket();
  RedisSocket(const RedisSocket&) = delete;
  RedisSocket& operator=(const RedisSocket&) = delete;

  // That nothing has arrived, nor has the server closed the connection.
  bool IsSilent() const;
  Status Send(const char* bytes, size_t count, RedisDeadline deadline);
  // At least one byte, and at most `most`.
  Status Receive(char* bytes, size_t most, size_t* count, RedisDeadline deadline);

 private:
  explicit RedisSocket(int fd) : fd_(fd) {}
  Status WaitFor(short events, RedisDeadline deadline);

  const int fd_;
};

}  // namespace group_embedding
