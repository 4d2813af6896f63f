#include "serving/server/protocol/http_server.h"

#include "serving/server/protocol/http_connection.h"
#include "serving/server/protocol/listener.h"

namespace group_embedding::server {

struct HttpServer::State {
  State(HttpOptions options, const AtOnce& at_once, const Handler& handler, const Refused& refused)
      : service(std::move(options), at_once, handler, refused),
        listener(service.options.listen, [this](auto socket, asio::ssl::context* context) {
          return MakeHttpConnection(std::move(socket), context, service);
        }) {}

  HttpService service;
  Listener listener;
};

HttpServer::HttpServer(HttpOptions options, AtOnce at_once, Handler handler, Refused refused)
    : state_(std::make_unique<State>(std::move(options), at_once, handler, refused)) {}

HttpServer::~HttpServer() { Stop(0); }

Status HttpServer::Start() { return state_->listener.Start(); }

int HttpServer::port() const { return state_->listener.port(); }

void HttpServer::Stop(double seconds) {
  // New connections are taken until the end: probes ask whether the server is ready.
  state_->service.is_stopping = true;
  state_->listener.ForEach([](ClientConnection& connection) { connection.Drain(); });
  state_->service.in_flight.WaitForNone(seconds);
  state_->listener.Stop();
  state_->service.workers.Join();
  state_->listener.Clear();
}

}  // namespace group_embedding::server
