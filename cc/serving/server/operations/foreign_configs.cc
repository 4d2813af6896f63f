// TensorFlow Serving's files of TLS and of metrics.
#include "serving/server/operations/options.h"
#include "serving/server/operations/text_proto.h"
#include "tensorflow_serving/config/monitoring_config.pb.h"
#include "tensorflow_serving/config/ssl_config.pb.h"

namespace group_embedding::server {
namespace {

constexpr char kPrometheusPath[] = "/monitoring/prometheus/metrics";

}  // namespace

Status ReadSslConfig(const std::string& file, Tls* tls) {
  tensorflow::serving::SSLConfig config;
  if (Status status = ReadTextProto(file, &config); !status.ok()) return status;
  if (config.server_key().empty() || config.server_cert().empty()) {
    return Status(StatusCode::INVALID_ARGUMENT,
                  "'" + file + "': expected server_key and server_cert, as PEM texts");
  }
  if (config.client_verify() && config.custom_ca().empty()) {
    return Status(StatusCode::INVALID_ARGUMENT,
                  "'" + file + "': client_verify needs custom_ca, the authorities of clients");
  }
  tls->key = config.server_key();
  tls->certificate = config.server_cert();
  if (config.client_verify()) tls->client_ca = config.custom_ca();
  return Status::OK;
}

Status ReadMonitoringConfig(const std::string& file, std::string* path) {
  tensorflow::serving::MonitoringConfig config;
  if (Status status = ReadTextProto(file, &config); !status.ok()) return status;
  path->clear();
  if (!config.prometheus_config().enable()) return Status::OK;
  *path = config.prometheus_config().path();
  if (path->empty()) *path = kPrometheusPath;
  if (path->front() == '/') return Status::OK;
  return Status(StatusCode::INVALID_ARGUMENT,
                "'" + file + "': expected a path that begins with '/', got '" + *path + "'");
}

}  // namespace group_embedding::server
