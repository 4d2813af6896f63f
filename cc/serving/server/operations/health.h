// gRPC's health service: whether the server's services answer.
//
// gRPC has one of its own, on threads that poll all connections: where they read a request, they
// hand it to another thread, and every request takes longer.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"

namespace group_embedding::server {

class Health : public grpc::health::v1::Health::Service {
 public:
  // The state of all services; those that watch get it. `Stop` ends them.
  void SetServing(bool serving);
  void Stop();

  grpc::Status Check(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* answer) override;
  // Each watch takes a thread. UNIMPLEMENTED, where a client goes on without it, if too many do.
  grpc::Status Watch(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>* answers) override;

 private:
  using State = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // SERVICE_UNKNOWN for a name that is not a service of the server's. Holds the lock.
  State StateOf(const std::string& service) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false, stopped_ = false;
  int watches_ = 0;
};

}  // namespace group_embedding::server
