#include "serving/server/protocol/rest_server.h"

#include <httplib.h>

#include "serving/server/operations/live.h"
#include "serving/server/protocol/json_answers.h"
#include "serving/server/protocol/rest_models.h"

namespace group_embedding::server {
namespace {

// A connection has a thread while it lives. Idle ones end after some seconds.
constexpr int kConnections = 64;
constexpr int kIdleSeconds = 5, kReadSeconds = 10;

void AnswerModels(Models& models, const Options& options, const httplib::Request& http,
                  const std::string& body, httplib::Response& answer) {
  Request request;
  request.deadline = std::chrono::system_clock::now() +
                     std::chrono::microseconds(static_cast<int64_t>(options.timeout_seconds * 1e6));
  request.cancelled = [] { return false; };
  const RestAnswer rest = AnswerRest(models, request, http.method, http.path, body);
  answer.status = rest.http_status;
  answer.set_content(rest.json, "application/json");
}

void AddPages(Models& models, httplib::Server* server) {
  server->Get("/", [&](const httplib::Request&, httplib::Response& answer) {
    answer.set_content(LivePage(models), "text/html; charset=utf-8");
  });
  const auto metrics = [&](const httplib::Request&, httplib::Response& answer) {
    answer.set_content(Metrics(models), "text/plain; version=0.0.4");
  };
  server->Get("/metrics", metrics);
  server->Get("/monitoring/prometheus/metrics", metrics);  // TensorFlow Serving's path
  server->Get("/healthz", [](const httplib::Request&, httplib::Response& answer) {
    answer.set_content("ok\n", "text/plain");
  });
  server->Get("/readyz", [&](const httplib::Request&, httplib::Response& answer) {
    const bool ready = models.ready();
    answer.status = ready ? 200 : 503;
    answer.set_content(ready ? "ok\n" : "models are being loaded\n", "text/plain");
  });
}

std::unique_ptr<httplib::Server> MakeServer(const Options& options) {
  if (options.tls_key.empty()) return std::make_unique<httplib::Server>();
  const char* authorities = options.tls_client_ca.empty() ? nullptr : options.tls_client_ca.c_str();
  return std::make_unique<httplib::SSLServer>(options.tls_certificate.c_str(),
                                              options.tls_key.c_str(), authorities);
}

}  // namespace

RestServer::RestServer(Models& models, const Options& options)
    : models_(models), options_(options) {}

RestServer::~RestServer() { Stop(); }

Status RestServer::Start() {
  server_ = MakeServer(options_);
  if (!server_->is_valid()) {
    return Status(StatusCode::INVALID_ARGUMENT, "REST cannot use '" + options_.tls_certificate +
                                                    "' and '" + options_.tls_key +
                                                    "': expected a PEM chain and its key");
  }
  server_->new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
  server_->set_keep_alive_timeout(kIdleSeconds);
  server_->set_keep_alive_max_count(1'000'000'000);
  server_->set_read_timeout(kReadSeconds);
  server_->set_tcp_nodelay(true);
  server_->set_payload_max_length(static_cast<size_t>(options_.max_message_bytes));
  // Without SO_REUSEPORT, which is the default: a port in use is an error.
  server_->set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  AddPages(models_, server_.get());
  server_->Get("/v1/.*", [this](const httplib::Request& http, httplib::Response& response) {
    AnswerModels(models_, options_, http, "", response);
  });
  // The body is read here: httplib would take that of `curl -d` for a form, of at most 8 KB.
  server_->Post("/v1/.*", [this](const httplib::Request& http, httplib::Response& response,
                                 const httplib::ContentReader& content) {
    std::string body;
    const bool read = content([&](const char* data, size_t bytes) {
      body.append(data, bytes);
      return true;
    });
    if (read) return AnswerModels(models_, options_, http, body, response);
    if (response.status < 400) response.status = 400;
  });
  server_->set_error_handler([](const httplib::Request& http, httplib::Response& response) {
    if (!response.body.empty()) return;
    const std::string what = response.status == 413   ? "the body is above --max-message-bytes"
                             : response.status == 404 ? "unknown path " + http.path.substr(0, 200)
                                                      : "malformed request";
    response.set_content(WriteError(what), "application/json");
  });
  port_ = options_.rest_port;
  const bool bound = port_ == 0 ? (port_ = server_->bind_to_any_port(options_.host.c_str())) > 0
                                : server_->bind_to_port(options_.host.c_str(), port_);
  if (!bound) {
    return Status(StatusCode::UNAVAILABLE,
                  "REST cannot listen on " + options_.host + ":" +
                      std::to_string(options_.rest_port) +
                      ": the port is in use, or the address is not this machine's");
  }
  thread_ = std::thread([this] { server_->listen_after_bind(); });
  return Status::OK;
}

void RestServer::Stop() {
  if (!thread_.joinable()) return;
  server_->stop();
  thread_.join();
}

}  // namespace group_embedding::server
