// TensorFlow Serving's REST interface, metrics, probes and the live page, over HTTP/1.1.
#pragma once

#include <atomic>
#include <memory>

#include "serving/server/models/models.h"
#include "serving/server/protocol/http_server.h"

namespace group_embedding::server {

class RestServer {
 public:
  RestServer(Models& models, const Options& options);

  // Listens, on threads of its own.
  Status Start();
  int port() const { return http_.port(); }

  // From now on the server is not ready, and models are not available: it is about to stop.
  void Drain() { is_draining_ = true; }
  // Ends: waits this long for requests in flight.
  void Stop(double seconds) { http_.Stop(seconds); }

 private:
  // The probes; nullopt: a worker answers.
  std::optional<HttpAnswer> Probe(const HttpRequest& http) const;
  HttpAnswer Answer(const HttpRequest& http);
  HttpAnswer AnswerModels(const HttpRequest& http);

  Models& models_;
  const Options& options_;
  std::atomic<bool> is_draining_{false};
  HttpServer http_;
};

}  // namespace group_embedding::server
