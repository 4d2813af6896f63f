#include "serving/server/protocol/rest_server.h"

#include "serving/server/operations/live.h"
#include "serving/server/protocol/json_answers.h"
#include "serving/server/protocol/json_values.h"
#include "serving/server/protocol/rest_inference.h"
#include "serving/server/protocol/rest_models.h"

namespace group_embedding::server {
namespace {

constexpr char kModels[] = "/v1/", kInference[] = "/v2";

// A value takes about 32 bytes while JSON is read: of the memory that eight times
// --max-message-bytes are, or this.
constexpr size_t kBytesOfValue = 32, kMemoryOfBodies = 8, kLeastMemory = size_t{16} << 20;

bool BeginsWith(const std::string& path, const char* beginning) {
  return path.rfind(beginning, 0) == 0;
}

HttpOptions OptionsOf(const Options& options) {
  HttpOptions http;
  http.listen.protocol = "REST";
  http.listen.host = options.host;
  http.listen.tls = options.rest_tls;
  http.listen.port = options.rest_port;
  http.listen.most_connections = options.rest_connections;
  http.most_body_bytes = static_cast<size_t>(options.max_message_bytes);
  return http;
}

HttpAnswer Text(int status, const std::string& text) { return {status, "text/plain", text}; }

HttpAnswer Error(int status, const std::string& message) {
  return {status, "application/json", WriteError(message)};
}

// The JSON of a body: all of it, or what is before the binary data of inputs.
std::string_view JsonOf(const HttpRequest& http) {
  const std::string_view body = http.body;
  return http.json_bytes < 0 ? body : body.substr(0, static_cast<size_t>(http.json_bytes));
}

}  // namespace

RestServer::RestServer(Models& models, const Options& options)
    : models_(models),
      options_(options),
      http_(
          OptionsOf(options), [this](const HttpRequest& http) { return Probe(http); },
          [this](const HttpRequest& http) { return Answer(http); }, WriteError) {}

Status RestServer::Start() { return http_.Start(); }

std::optional<HttpAnswer> RestServer::Probe(const HttpRequest& http) const {
  if (http.path == "/healthz" || http.path == "/v2/health/live") return Text(200, "ok\n");
  if (http.path != "/readyz" && http.path != "/v2/health/ready") return std::nullopt;
  if (is_draining_) return Text(503, "the server stops\n");
  const std::string missing = models_.NotReady();
  return missing.empty() ? Text(200, "ok\n") : Text(503, missing);
}

HttpAnswer RestServer::Answer(const HttpRequest& http) {
  const bool is_monitoring = http.path == options_.monitoring_path;
  if (!is_monitoring && (BeginsWith(http.path, kModels) || BeginsWith(http.path, kInference))) {
    return AnswerModels(http);
  }
  const bool is_metrics = http.path == "/metrics" || is_monitoring;
  const bool is_probe = http.path == "/healthz" || http.path == "/readyz";
  if (!is_metrics && !is_probe && http.path != "/") {
    return Error(404, "unknown path " + http.path.substr(0, 200));
  }
  if (http.method == "POST") return Error(405, "expected GET or HEAD of " + http.path);
  if (is_metrics) {
    const std::string theirs = is_monitoring ? TensorFlowMetrics(models_) : "";
    return {200, "text/plain; version=0.0.4", theirs + Metrics(models_)};
  }
  return {200, "text/html; charset=utf-8", LivePage(models_)};
}

HttpAnswer RestServer::AnswerModels(const HttpRequest& http) {
  if (is_draining_) return Error(503, "the server stops");
  const size_t most_bytes = static_cast<size_t>(options_.max_message_bytes);
  const size_t most = std::max(kMemoryOfBodies * most_bytes, kLeastMemory) / kBytesOfValue;
  if (MostValuesOf(JsonOf(http)) > most) {
    return Error(413, "expected JSON of at most " + std::to_string(most) +
                          " values, which are allowed by --max-message-bytes");
  }
  Request request;
  request.deadline =
      std::chrono::system_clock::now() +
      std::chrono::microseconds(static_cast<int64_t>(options_.timeout_seconds * 1e6));
  request.cancelled = http.cancelled;
  request.entrypoint = Entrypoint::kRest;
  if (BeginsWith(http.path, kInference)) return AnswerInference(models_, request, http);
  const std::string method = http.method == "POST" ? "POST" : "GET";
  RestAnswer rest = AnswerRest(models_, request, method, http.path, http.body);
  return {rest.http_status, "application/json", std::move(rest.json)};
}

}  // namespace group_embedding::server
