#include "serving/server/models/served_model.h"

#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

namespace group_embedding::server {
namespace {

std::string OptionsOf(const Options& options, int64_t version, const std::string& state) {
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> json(buffer);
  const auto text = [&](const char* key, const std::string& value) {
    if (value.empty()) return;
    json.Key(key);
    json.String(value.c_str());
  };
  json.StartObject();
  text("tensorflow", options.tensorflow);
  text("quantize", options.quantize);
  text("tiers", options.tiers);
  text("state", state);
  if (!options.device.empty()) {
    json.Key("devices");
    json.StartArray();
    json.String(options.device.c_str());
    json.EndArray();
  }
  if (version >= 0) {
    json.Key("version");
    json.Int64(version);
  }
  if (options.op_threads > 0) {
    json.Key("threads");
    json.Int(options.op_threads);
  }
  if (options.inter_op_threads > 0) {
    json.Key("inter_op_threads");
    json.Int(options.inter_op_threads);
  }
  json.EndObject();
  return buffer.GetString();
}

}  // namespace

Status ServedModel::Loader::Load(const std::string& path, int64_t version, const std::string& state,
                                 std::shared_ptr<ServedModel>* served) const {
  auto loaded = std::make_shared<ServedModel>();
  loaded->path_ = path;
  Status status =
      OpenModel::Open(library, path, OptionsOf(options, version, state), &loaded->model_);
  std::string signatures;
  if (status.ok()) status = loaded->model_->Signatures(&signatures);
  if (status.ok()) status = ParseSignatures(signatures, &loaded->signatures_);
  if (!status.ok()) return status;
  for (const auto& [name, signature] : loaded->signatures_) {
    loaded->joinable_.try_emplace(name, signature);
  }
  *served = std::move(loaded);
  return status;
}

std::optional<JoinableInputs> ServedModel::AsJoinable(const Question& question) const {
  const Joinable& joinable = joinable_.at(question.signature);
  if (!joinable.output_rows.MayHaveRows(question.outputs)) return std::nullopt;
  return server::AsJoinable(signatures_.at(question.signature), joinable.roles, question.inputs);
}

const std::vector<InputRole>& ServedModel::RolesOfInputs(const Question& question) const {
  return joinable_.at(question.signature).roles;
}

bool ServedModel::HaveRows(const Question& question, int64_t samples) const {
  return joinable_.at(question.signature).output_rows.HaveRows(question.outputs, samples);
}

bool ServedModel::Saw(const Question& question, const Response& response, int64_t samples) const {
  return joinable_.at(question.signature).output_rows.Saw(response, samples);
}

}  // namespace group_embedding::server
