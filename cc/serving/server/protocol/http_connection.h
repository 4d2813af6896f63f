// One connection of HTTP/1.1, plain or with TLS. Everything but the handler runs on one thread.
#pragma once

#include <atomic>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <memory>
#include <optional>
#include <string>

#include "serving/server/protocol/http_head.h"
#include "serving/server/protocol/http_server.h"
#include "serving/server/protocol/listener.h"
#include "serving/server/protocol/workers.h"

namespace group_embedding::server {

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
        workers(options.workers, options.listen.most_connections) {}

  const HttpOptions options;
  const std::function<std::optional<HttpAnswer>(const HttpRequest&)> at_once;
  const std::function<HttpAnswer(const HttpRequest&)> handler;
  const std::function<std::string(const std::string&)> refused;
  Workers workers;
  std::atomic<bool> is_stopping{false};  // connections end behind an answer
  InFlight in_flight;  // requests that workers answer, until the answer is written
};

// `context` is of TLS; null: the connection is plain.
std::shared_ptr<ClientConnection> MakeHttpConnection(asio::ip::tcp::socket socket,
                                                     asio::ssl::context* context,
                                                     HttpService& service);

}  // namespace group_embedding::server
