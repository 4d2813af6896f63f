#include "serving/server/protocol/grpc_server.h"

#include <absl/synchronization/mutex.h>
#include <grpcpp/resource_quota.h>

#include <fstream>
#include <sstream>

#include "inference/grpc_service.grpc.pb.h"
#include "serving/server/protocol/inference.h"
#include "tensorflow_serving/apis/model_service.grpc.pb.h"
#include "tensorflow_serving/apis/prediction_service.grpc.pb.h"

namespace group_embedding::server {
namespace {

// For answers that compute nothing, and for gRPC itself.
constexpr int kOtherThreads = 16;
// Limits of a connection: its requests at a time; how long it may be idle; and its age, after which
// a client connects anew, which requests do not see.
constexpr int kMostMetadataBytes = 16 << 10, kMostStreams = 1024;
constexpr int kMostIdleMs = 600'000, kMostAgeMs = 3'600'000, kAgeGraceMs = 60'000;

Request RequestOf(grpc::ServerContext* context, const Options& options) {
  Request request;
  request.deadline = context->deadline();
  if (request.deadline == Deadline::max()) {  // the client names none
    request.deadline =
        std::chrono::system_clock::now() +
        std::chrono::microseconds(static_cast<int64_t>(options.timeout_seconds * 1e6));
  }
  request.cancelled = [context] { return context->IsCancelled(); };
  return request;
}

Status ReadFile(const std::string& path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  *text = content.str();
  if (file && !text->empty()) return Status::OK;
  return Status(StatusCode::NOT_FOUND, "cannot read '" + path + "', or it is empty");
}

Status MakeCredentials(const Options& options, std::shared_ptr<grpc::ServerCredentials>* made) {
  *made = grpc::InsecureServerCredentials();
  if (options.tls_key.empty()) return Status::OK;
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  grpc::SslServerCredentialsOptions tls;
  Status status = ReadFile(options.tls_key, &pair.private_key);
  if (status.ok()) status = ReadFile(options.tls_certificate, &pair.cert_chain);
  if (status.ok() && !options.tls_client_ca.empty()) {
    status = ReadFile(options.tls_client_ca, &tls.pem_root_certs);
    tls.client_certificate_request = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  if (!status.ok()) return status;
  tls.pem_key_cert_pairs.push_back(pair);
  *made = grpc::SslServerCredentials(tls);
  return Status::OK;
}

}  // namespace

class GrpcServer::Predictions : public wire::PredictionService::Service {
 public:
  Predictions(Models& models, const Options& options) : models_(models), options_(options) {}

  Status Predict(grpc::ServerContext* context, const wire::PredictRequest* message,
                 wire::PredictResponse* answer) override {
    return models_.Predict(RequestOf(context, options_), *message, answer);
  }
  Status Classify(grpc::ServerContext* context, const wire::ClassificationRequest* message,
                  wire::ClassificationResponse* answer) override {
    return models_.Classify(RequestOf(context, options_), *message, answer);
  }
  Status Regress(grpc::ServerContext* context, const wire::RegressionRequest* message,
                 wire::RegressionResponse* answer) override {
    return models_.Regress(RequestOf(context, options_), *message, answer);
  }
  Status GetModelMetadata(grpc::ServerContext*, const wire::GetModelMetadataRequest* message,
                          wire::GetModelMetadataResponse* answer) override {
    return models_.GetModelMetadata(*message, answer);
  }

 private:
  Models& models_;
  const Options& options_;
};

// The Open Inference Protocol.
class GrpcServer::Inferences : public inference::GRPCInferenceService::Service {
 public:
  Inferences(Models& models, const Options& options) : models_(models), options_(options) {}

  Status ServerLive(grpc::ServerContext*, const inference::ServerLiveRequest*,
                    inference::ServerLiveResponse* answer) override {
    answer->set_live(true);
    return Status::OK;
  }
  Status ServerReady(grpc::ServerContext*, const inference::ServerReadyRequest*,
                     inference::ServerReadyResponse* answer) override {
    answer->set_ready(models_.ready());
    return Status::OK;
  }
  Status ModelReady(grpc::ServerContext*, const inference::ModelReadyRequest* message,
                    inference::ModelReadyResponse* answer) override {
    wire::ModelSpec spec;
    std::shared_ptr<ServedModel> served;
    const Status status = ReadSpec(message->name(), message->version(), &spec);
    answer->set_ready(status.ok() && models_.Find(spec, &served).ok());
    return status;
  }
  Status ServerMetadata(grpc::ServerContext*, const inference::ServerMetadataRequest*,
                        inference::ServerMetadataResponse* answer) override {
    answer->set_name("ge-serve");
    answer->set_version(GE_SERVE_VERSION);
    return Status::OK;
  }
  Status ModelMetadata(grpc::ServerContext*, const inference::ModelMetadataRequest* message,
                       inference::ModelMetadataResponse* answer) override {
    return Metadata(models_, *message, answer);
  }
  Status ModelInfer(grpc::ServerContext* context, const inference::ModelInferRequest* message,
                    inference::ModelInferResponse* answer) override {
    return Infer(models_, RequestOf(context, options_), *message, answer);
  }

 private:
  Models& models_;
  const Options& options_;
};

class GrpcServer::States : public wire::ModelService::Service {
 public:
  explicit States(Models& models) : models_(models) {}

  Status GetModelStatus(grpc::ServerContext*, const wire::GetModelStatusRequest* message,
                        wire::GetModelStatusResponse* answer) override {
    return models_.GetModelStatus(*message, answer);
  }

 private:
  Models& models_;
};

GrpcServer::GrpcServer(Models& models, const Options& options)
    : options_(options),
      predictions_(std::make_unique<Predictions>(models, options)),
      inferences_(std::make_unique<Inferences>(models, options)),
      states_(std::make_unique<States>(models)) {}

GrpcServer::~GrpcServer() { Stop(0); }

Status GrpcServer::Start() {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (Status status = MakeCredentials(options_, &credentials); !status.ok()) return status;
  grpc::EnableDefaultHealthCheckService(false);
  // Debian's gRPC would look for deadlocks in each of its locks.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  grpc::ServerBuilder builder;
  const std::string address = options_.host + ":" + std::to_string(options_.grpc_port);
  builder.AddListeningPort(address, credentials, &port_);
  builder.RegisterService(predictions_.get());
  builder.RegisterService(inferences_.get());
  builder.RegisterService(states_.get());
  builder.RegisterService(&health_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error
  // Limits for strangers: gRPC has none by default, but for metadata.
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMostIdleMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kMostAgeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kAgeGraceMs);
  // A request that waits at the gate has a thread. Threads that poll stay for the next request.
  grpc::ResourceQuota quota("ge-serve");
  quota.SetMaxThreads(options_.threads + options_.queue + kOtherThreads);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, std::max(2, options_.threads));
  server_ = builder.BuildAndStart();
  if (server_ != nullptr && port_ != 0) return Status::OK;
  return Status(StatusCode::UNAVAILABLE, "gRPC cannot listen on " + address +
                                             ": the port is in use, the address is not this "
                                             "machine's, or the files of TLS are no PEM");
}

void GrpcServer::SetServing(bool serving) { health_.SetServing(serving); }

void GrpcServer::Stop(double seconds) {
  if (server_ == nullptr) return;
  health_.Stop();
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
  server_->Wait();
  server_.reset();
}

}  // namespace group_embedding::server
