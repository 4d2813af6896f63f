// The services of gRPC: TensorFlow Serving's, the Open Inference Protocol's, and health.
//
// A server of single requests needs little of gRPC: five bytes in front of a message, and trailers.
// They are written here, over nghttp2: Debian gives security updates to it, and none to gRPC.
#pragma once

#include <atomic>
#include <memory>

#include "serving/server/models/models.h"
#include "serving/server/protocol/grpc_session.h"
#include "serving/server/protocol/listener.h"

namespace group_embedding::server {

class GrpcServer {
 public:
  GrpcServer(Models& models, const Options& options);
  ~GrpcServer() { Stop(0); }

  // Listens. The error says which address, or which file of TLS.
  Status Start() { return listener_.Start(); }
  int port() const { return listener_.port(); }
  // What the health service answers, from now on.
  void SetServing(bool serving);
  // Takes no new requests, and gives those in flight some seconds.
  void Stop(double seconds);

 private:
  std::atomic<bool> is_serving_{false};
  GrpcService service_;
  Workers workers_;
  Listener listener_;
};

}  // namespace group_embedding::server
