#include "serving/server/protocol/grpc_services.h"

#include <google/protobuf/arena.h>

#include "grpc/health/v1/health.pb.h"
#include "inference/grpc_service.pb.h"
#include "serving/server/protocol/grpc_message.h"
#include "serving/server/protocol/inference.h"
#include "serving/server/protocol/inference_messages.h"

namespace group_embedding::server {
namespace {

using Methods = std::map<std::string, GrpcMethod>;
using HealthRequest = grpc::health::v1::HealthCheckRequest;
using HealthResponse = grpc::health::v1::HealthCheckResponse;

constexpr size_t kMostBlockBytes = size_t{32} << 10;
constexpr char kPredictions[] = "tensorflow.serving.PredictionService";
constexpr char kStates[] = "tensorflow.serving.ModelService";
constexpr char kInference[] = "inference.GRPCInferenceService";
constexpr char kHealth[] = "grpc.health.v1.Health";

// A method whose messages are protobuf's. answer: fills Answer, given the Message.
template <typename Message, typename Answer, typename F>
GrpcMethod MethodOf(GrpcMethod::Kind kind, F answer) {
  return {kind, Message::descriptor(),
          [answer](const Request& request, std::string_view bytes, std::string* frame) {
            google::protobuf::ArenaOptions blocks;
            blocks.max_block_size = kMostBlockBytes;
            google::protobuf::Arena arena(blocks);  // a message of many inputs has many parts
            Message& message = *google::protobuf::Arena::CreateMessage<Message>(&arena);
            if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
              return Status(StatusCode::INTERNAL, "the bytes are no " + message.GetTypeName());
            }
            Answer filled;
            if (Status status = answer(request, message, &filled); !status.ok()) return status;
            frame->assign(kGrpcFrameBytes, '\0');
            if (!filled.AppendToString(frame)) {
              return Status(StatusCode::RESOURCE_EXHAUSTED, "the answer has more than 2 GB");
            }
            WriteGrpcLength(frame);
            return Status::OK;
          }};
}

std::string PathOf(const char* service, const char* method) {
  return std::string("/") + service + "/" + method;
}

void AddPredictions(Models& models, Methods* methods) {
  const auto add = [&](const char* service, const char* name, GrpcMethod method) {
    (*methods)[PathOf(service, name)] = std::move(method);
  };
  const auto computed = GrpcMethod::kComputed;
  add(kPredictions, "Predict",
      MethodOf<wire::PredictRequest, wire::PredictResponse>(
          computed, [&](const Request& request, const auto& message, auto* answer) {
            return models.Predict(request, message, answer);
          }));
  add(kPredictions, "Classify",
      MethodOf<wire::ClassificationRequest, wire::ClassificationResponse>(
          computed, [&](const Request& request, const auto& message, auto* answer) {
            return models.Classify(request, message, answer);
          }));
  add(kPredictions, "Regress",
      MethodOf<wire::RegressionRequest, wire::RegressionResponse>(
          computed, [&](const Request& request, const auto& message, auto* answer) {
            return models.Regress(request, message, answer);
          }));
  add(kPredictions, "GetModelMetadata",
      MethodOf<wire::GetModelMetadataRequest, wire::GetModelMetadataResponse>(
          computed, [&](const Request&, const auto& message, auto* answer) {
            return models.GetModelMetadata(message, answer);
          }));
  add(kStates, "GetModelStatus",
      MethodOf<wire::GetModelStatusRequest, wire::GetModelStatusResponse>(
          computed, [&](const Request&, const auto& message, auto* answer) {
            return models.GetModelStatus(message, answer);
          }));
}

Status ModelReady(const Models& models, const inference::ModelReadyRequest& message,
                  inference::ModelReadyResponse* answer) {
  wire::ModelSpec spec;
  std::shared_ptr<ServedModel> served;
  const Status status = ReadSpec(message.name(), message.version(), &spec);
  answer->set_ready(status.ok() && models.Find(spec, &served).ok());
  return status;
}

void AddInference(Models& models, Methods* methods) {
  const auto add = [&](const char* name, GrpcMethod method) {
    (*methods)[PathOf(kInference, name)] = std::move(method);
  };
  add("ServerLive", MethodOf<inference::ServerLiveRequest, inference::ServerLiveResponse>(
                        GrpcMethod::kAtOnce, [](const Request&, const auto&, auto* answer) {
                          answer->set_live(true);
                          return Status::OK;
                        }));
  add("ServerReady", MethodOf<inference::ServerReadyRequest, inference::ServerReadyResponse>(
                         GrpcMethod::kAtOnce, [&](const Request&, const auto&, auto* answer) {
                           answer->set_ready(models.ready());
                           return Status::OK;
                         }));
  add("ModelReady",
      MethodOf<inference::ModelReadyRequest, inference::ModelReadyResponse>(
          GrpcMethod::kAtOnce, [&](const Request&, const auto& message, auto* answer) {
            return ModelReady(models, message, answer);
          }));
  add("ServerMetadata",
      MethodOf<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
          GrpcMethod::kAtOnce, [](const Request&, const auto&, auto* answer) {
            answer->set_name("ge-serve");
            answer->set_version(GE_SERVE_VERSION);
            return Status::OK;
          }));
  add("ModelMetadata",
      MethodOf<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
          GrpcMethod::kComputed, [&](const Request&, const auto& message, auto* answer) {
            return Metadata(models, message, answer);
          }));
  add("ModelInfer",
      MethodOf<inference::ModelInferRequest, inference::ModelInferResponse>(
          GrpcMethod::kComputed, [&](const Request& request, const auto& message, auto* answer) {
            return Infer(models, request, message, answer);
          }));
}

HealthResponse::ServingStatus StateOf(const std::string& service, bool is_serving) {
  for (const char* known : {"", kPredictions, kStates, kInference}) {
    if (service != known) continue;
    return is_serving ? HealthResponse::SERVING : HealthResponse::NOT_SERVING;
  }
  return HealthResponse::SERVICE_UNKNOWN;
}

void AddHealth(const std::atomic<bool>& is_serving, Methods* methods) {
  (*methods)[PathOf(kHealth, "Check")] = MethodOf<HealthRequest, HealthResponse>(
      GrpcMethod::kAtOnce, [&](const Request&, const HealthRequest& message, auto* answer) {
        answer->set_status(StateOf(message.service(), is_serving));
        if (answer->status() != HealthResponse::SERVICE_UNKNOWN) return Status::OK;
        return Status(StatusCode::NOT_FOUND,
                      "service '" + message.service().substr(0, 200) + "' is not known");
      });
  (*methods)[PathOf(kHealth, "Watch")] = MethodOf<HealthRequest, HealthResponse>(
      GrpcMethod::kWatched, [&](const Request&, const HealthRequest& message, auto* answer) {
        answer->set_status(StateOf(message.service(), is_serving));
        return Status::OK;
      });
}

}  // namespace

Methods MakeGrpcMethods(Models& models, const std::atomic<bool>& is_serving) {
  Methods methods;
  AddPredictions(models, &methods);
  AddInference(models, &methods);
  AddHealth(is_serving, &methods);
  return methods;
}

}  // namespace group_embedding::server
