#include "serving/lower/redis/redis_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace group_embedding {
namespace {

int MillisecondsUntil(RedisDeadline deadline) {
  using std::chrono::ceil;
  using std::chrono::milliseconds;
  const auto left = ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

std::string ErrorText(int error) { return std::strerror(error); }

// A socket that is connected, or -1.
int ConnectTo(const addrinfo& to, RedisDeadline deadline, Status* error) {
  const int fd =
      socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol);
  if (fd < 0) {
    *error = ErrorText(errno);
    return -1;
  }
  int failed = connect(fd, to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
  if (failed == EINPROGRESS) {
    pollfd wait = {fd, POLLOUT, 0};
    socklen_t size = sizeof(failed);
    const int ready = poll(&wait, 1, MillisecondsUntil(deadline));
    if (ready < 1) failed = ETIMEDOUT;
    if (ready == 1) getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size);
  }
  if (failed != 0) {
    *error = ErrorText(failed);
    close(fd);
    return -1;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  return fd;
}

}  // namespace

RedisDeadline RedisDeadlineIn(double seconds) {
  const auto nanoseconds = std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  return std::chrono::steady_clock::now() + nanoseconds;
}

std::unique_ptr<RedisSocket> RedisSocket::Connect(const RedisAddress& address,
                                                  RedisDeadline deadline, Status* error) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int resolved = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (resolved != 0) {
    *error = gai_strerror(resolved);
    return nullptr;
  }
  int fd = -1;
  for (const addrinfo* to = found; to != nullptr && fd < 0; to = to->ai_next) {
    fd = ConnectTo(*to, deadline, error);
  }
  freeaddrinfo(found);
  if (fd < 0) return nullptr;
  *error = {};
  return std::unique_ptr<RedisSocket>(new RedisSocket(fd));
}

RedisSocket::~RedisSocket() { close(fd_); }

bool RedisSocket::IsSilent() const {
  pollfd wait = {fd_, POLLIN | POLLRDHUP, 0};
  return poll(&wait, 1, 0) == 0;
}

Status RedisSocket::WaitFor(short events, RedisDeadline deadline) {
  pollfd wait = {fd_, events, 0};
  for (;;) {
    const int ready = poll(&wait, 1, MillisecondsUntil(deadline));
    if (ready > 0) return {};
    if (ready == 0) return Status("no answer in time");
    if (errno != EINTR) return Status(ErrorText(errno));
  }
}

Status RedisSocket::Send(const char* bytes, size_t count, RedisDeadline deadline) {
  while (count > 0) {
    const ssize_t sent = send(fd_, bytes, count, MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes += sent;
      count -= sent;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      Status status = WaitFor(POLLOUT, deadline);
      if (!status.ok()) return status;
    } else if (errno != EINTR) {
      return Status(ErrorText(errno));
    }
  }
  return {};
}

Status RedisSocket::Receive(char* bytes, size_t most, size_t* count, RedisDeadline deadline) {
  for (;;) {
    const ssize_t received = recv(fd_, bytes, most, 0);
    if (received > 0) {
      *count = received;
      return {};
    }
    if (received == 0) return Status("the server closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      Status status = WaitFor(POLLIN, deadline);
      if (!status.ok()) return status;
    } else if (errno != EINTR) {
      return Status(ErrorText(errno));
    }
  }
}

}  // namespace group_embedding
