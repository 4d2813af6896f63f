// TensorFlow Serving's PredictionService and ModelService, and gRPC's health service.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "serving/server/models/models.h"
#include "serving/server/operations/health.h"

namespace group_embedding::server {

class GrpcServer {
 public:
  GrpcServer(Models& models, const Options& options);
  ~GrpcServer();

  // Listens. The error says which address, or which file of TLS.
  Status Start();
  int port() const { return port_; }
  // What the health service answers, from now on.
  void SetServing(bool serving);
  // Takes no new requests, and gives those in flight some seconds.
  void Stop(double seconds);

 private:
  class Predictions;
  class Inferences;
  class States;

  const Options& options_;
  std::unique_ptr<Predictions> predictions_;
  std::unique_ptr<Inferences> inferences_;
  std::unique_ptr<States> states_;
  Health health_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace group_embedding::server
