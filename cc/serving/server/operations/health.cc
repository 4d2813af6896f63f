#include "serving/server/operations/health.h"

#include <chrono>

namespace group_embedding::server {
namespace {

namespace wire = grpc::health::v1;

constexpr int kMostWatches = 8;
// A client that goes away is seen after this long.
constexpr std::chrono::seconds kBetweenLooks(1);

}  // namespace

void Health::SetServing(bool serving) {
  std::lock_guard<std::mutex> lock(mutex_);
  serving_ = serving;
  changed_.notify_all();
}

void Health::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

Health::State Health::StateOf(const std::string& service) const {
  for (const char* known : {"", "tensorflow.serving.PredictionService",
                            "tensorflow.serving.ModelService", "inference.GRPCInferenceService"}) {
    if (service != known) continue;
    return serving_ ? wire::HealthCheckResponse::SERVING : wire::HealthCheckResponse::NOT_SERVING;
  }
  return wire::HealthCheckResponse::SERVICE_UNKNOWN;
}

grpc::Status Health::Check(grpc::ServerContext*, const wire::HealthCheckRequest* request,
                           wire::HealthCheckResponse* answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const State state = StateOf(request->service());
  if (state == wire::HealthCheckResponse::SERVICE_UNKNOWN) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND,
                        "service '" + request->service().substr(0, 200) + "' is not known");
  }
  answer->set_status(state);
  return grpc::Status::OK;
}

grpc::Status Health::Watch(grpc::ServerContext* context, const wire::HealthCheckRequest* request,
                           grpc::ServerWriter<wire::HealthCheckResponse>* answers) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (watches_ == kMostWatches) {
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                        "expected at most " + std::to_string(kMostWatches) + " watches at a time");
  }
  ++watches_;
  int told = -1;
  bool listens = true;
  while (listens && !stopped_) {
    const State state = StateOf(request->service());
    if (state == told) {
      changed_.wait_for(lock, kBetweenLooks);
    } else {
      wire::HealthCheckResponse answer;
      answer.set_status(state);
      told = state;
      lock.unlock();
      listens = answers->Write(answer);
      lock.lock();
    }
    listens = listens && !context->IsCancelled();
  }
  --watches_;
  return stopped_ ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server stops")
                  : grpc::Status::CANCELLED;
}

}  // namespace group_embedding::server
