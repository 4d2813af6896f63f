// One connection of HTTP/1.1, plain or with TLS. Everything but the handler runs on one thread.
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serving/server/protocol/http_head.h"
#include "serving/server/protocol/http_server.h"

namespace group_embedding::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

// What a connection needs of its server.
struct HttpService {
  HttpService(HttpOptions options_,
              std::function<std::optional<HttpAnswer>(const HttpRequest&)> at_once_,
              std::function<HttpAnswer(const HttpRequest&)> handler_,
              std::function<std::string(const std::string&)> refused_)
      : options(std::move(options_)),
        at_once(std::move(at_once_)),
        handler(std::move(handler_)),
        refused(std::move(refused_)),
        workers(static_cast<size_t>(options.workers)) {}

  const HttpOptions options;
  const std::function<std::optional<HttpAnswer>(const HttpRequest&)> at_once;
  const std::function<HttpAnswer(const HttpRequest&)> handler;
  const std::function<std::string(const std::string&)> refused;
  asio::thread_pool workers;
  bool is_stopping = false;  // of the thread of connections

  // Requests that workers answer, until the answer is written.
  void AddComputed(int count) {
    std::lock_guard<std::mutex> lock(mutex);
    num_computed += count;
    if (num_computed == 0) none_computed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable none_computed;
  int num_computed = 0;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  virtual ~HttpConnection() = default;
  // Reads requests and answers them until the connection ends; then calls `ended`.
  virtual void Start(std::function<void()> ended) = 0;
  // Ends it if it waits for a head, or for the rest of one; or also of a body. False: a request is
  // being answered.
  virtual bool CloseIfIdle(bool also_in_body) = 0;
};

// `context` is of TLS; null: the connection is plain.
std::shared_ptr<HttpConnection> MakeConnection(asio::ip::tcp::socket socket,
                                               asio::ssl::context* context, HttpService& service);

}  // namespace group_embedding::server
