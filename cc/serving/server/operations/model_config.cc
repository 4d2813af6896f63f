#include "serving/server/operations/options.h"
#include "serving/server/operations/text_proto.h"
#include "tensorflow_serving/config/model_server_config.pb.h"

namespace group_embedding::server {
namespace {

using tensorflow::serving::ModelConfig;

Status ReadModel(const ModelConfig& config, ModelToServe* model) {
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::INVALID_ARGUMENT, "model '" + config.name() + "': " + what);
  };
  if (config.name().empty()) return bad("expected a name");
  if (config.base_path().empty()) return bad("expected a base_path");
  if (!config.model_platform().empty() && config.model_platform() != "tensorflow") {
    return bad("expected model_platform 'tensorflow', got '" + config.model_platform() + "'");
  }
  model->name = config.name();
  model->path = config.base_path();
  model->source = config.source();
  for (const auto& [label, version] : config.version_labels()) model->labels[label] = version;
  const auto& policy = config.model_version_policy();
  model->policy.all = policy.has_all();
  if (policy.has_latest()) {
    const uint32_t latest = policy.latest().num_versions();
    if (latest > 1000) return bad("expected num_versions of at most 1000");
    model->policy.latest = latest == 0 ? 1 : static_cast<int>(latest);  // 0 is not set
  }
  if (policy.has_specific()) {
    for (const int64_t version : policy.specific().versions()) {
      if (version < 0) return bad("expected versions of 0 or more, got " + std::to_string(version));
      model->policy.specific.push_back(version);
    }
    if (model->policy.specific.empty()) return bad("expected versions in its policy `specific`");
  }
  return Status::OK;
}

}  // namespace

Status ReadModelConfig(const std::string& file, std::vector<ModelToServe>* models) {
  tensorflow::serving::ModelServerConfig config;
  if (Status status = ReadTextProto(file, &config); !status.ok()) return status;
  if (config.model_config_list().config().empty()) {
    return Status(StatusCode::INVALID_ARGUMENT,
                  "'" + file + "': expected model_config_list { config { ... } } with a model");
  }
  for (const ModelConfig& model : config.model_config_list().config()) {
    ModelToServe read;
    if (Status status = ReadModel(model, &read); !status.ok()) {
      return Status(status.error_code(), "'" + file + "', " + status.error_message());
    }
    models->push_back(read);
  }
  return Status::OK;
}

}  // namespace group_embedding::server
