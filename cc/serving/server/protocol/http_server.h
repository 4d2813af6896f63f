// HTTP/1.1 over Boost.Beast: one thread for all connections, others for requests that compute.
//
//   accept ─> head ─> body ─┬─ answered at once ────────────────────┬─> answer ─> next head
//                           └─ worker: the handler computes ────────┘
//
// Slow clients cost no thread. A connection ends that takes longer than a deadline for a handshake,
// a head, a body or the reading of an answer. Pipelined requests are answered in order. A malformed
// request is answered, and ends its connection.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "serving/server/protocol/listener.h"

namespace group_embedding::server {

struct HttpRequest {
  std::string method;  // GET, HEAD or POST
  std::string path;    // decoded, without the query
  std::string body;
  int64_t json_bytes = -1;          // Inference-Header-Content-Length; -1: it is not there
  std::function<bool()> cancelled;  // whether the client has closed the connection
};

struct HttpAnswer {
  int status = 200;
  std::string type;  // of the body, such as "application/json"
  std::string body;
  int64_t json_bytes = -1;  // of the body, before bytes of tensors; -1: there are none
  bool is_gzip = false;     // the body is deflated
};

struct HttpOptions {
  ListenOptions listen;
  size_t most_body_bytes = 0;  // as read, and inflated
  int workers = 64;
};

class HttpServer {
 public:
  using AtOnce = std::function<std::optional<HttpAnswer>(const HttpRequest&)>;
  using Handler = std::function<HttpAnswer(const HttpRequest&)>;
  using Refused = std::function<std::string(const std::string&)>;

  // at_once: called on the thread of all connections for GET and HEAD; nullopt: a worker answers.
  // handler: called on a worker. Both are called from several threads at a time.
  // refused: the JSON of a refusal, given its message.
  HttpServer(HttpOptions options, AtOnce at_once, Handler handler, Refused refused);
  ~HttpServer();

  // Listens. INVALID_ARGUMENT: the files of TLS are no PEM. UNAVAILABLE: the port is in use, or the
  // address is not this machine's.
  Status Start();
  int port() const;

  // Ends: waits this long for requests that are being answered.
  void Stop(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace group_embedding::server
