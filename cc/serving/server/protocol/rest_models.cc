#include "serving/server/protocol/rest_models.h"

#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <regex>

#include "serving/server/models/numbered_versions.h"
#include "serving/server/protocol/json_answers.h"
#include "serving/server/protocol/json_requests.h"
#include "serving/server/protocol/json_values.h"

namespace group_embedding::server {
namespace {

Status Bad(const std::string& what) { return Status(StatusCode::INVALID_ARGUMENT, what); }

// /v1/models/NAME[/versions/V|/labels/L][:verb|/metadata]; verb is "" for a GET without one.
Status ReadPath(const std::string& method, const std::string& path, wire::ModelSpec* spec,
                std::string* verb) {
  static const std::regex kPath(
      "/v1/models/([^/:]+)(?:/versions/([0-9]+)|/labels/([^/:]+))?(?:(:[a-z]+)|(/metadata))?");
  std::smatch found;
  // A regular expression takes a stack frame for each character.
  const bool right = path.size() <= 1000 && std::regex_match(path, found, kPath);
  if (!right || (method == "POST") != found[4].matched) {
    return Bad("malformed request: " + method + " " + path.substr(0, 200));
  }
  spec->set_name(found[1]);
  if (found[2].matched) {
    const int64_t version = AsVersion(found[2]);
    if (version < 0) return Bad("expected a version of at most 2^63 - 1, got " + found[2].str());
    spec->mutable_version()->set_value(version);
  }
  if (found[3].matched) spec->set_version_label(found[3]);
  *verb = found[4].matched ? found[4].str().substr(1) : found[5].matched ? "metadata" : "";
  return Status::OK;
}

Status Predict(Models& models, const Request& request, const wire::ModelSpec& spec,
               const rapidjson::Value& body, std::string* json) {
  wire::PredictRequest message;
  *message.mutable_model_spec() = spec;
  JsonFormat format = JsonFormat::kRow;
  {
    std::shared_ptr<ServedModel> served;
    const Signature* signature = nullptr;
    Status status = models.Find(spec, &served);
    if (status.ok())
      status = FindSignature(served->signatures(), spec.signature_name(), &signature);
    if (status.ok()) status = ReadPredictBody(body, *signature, &message, &format);
    if (!status.ok()) return status;
  }
  wire::PredictResponse answer;
  Status status = models.Predict(request, message, &answer);
  return status.ok() ? WriteJson(answer, format, json) : status;
}

Status Post(Models& models, const Request& request, wire::ModelSpec spec, const std::string& verb,
            const std::string& text, std::string* json) {
  rapidjson::Document body;
  Status status = ParseObject(text, &body);
  if (status.ok()) status = ReadSignatureName(body, spec.mutable_signature_name());
  if (!status.ok()) return status;
  if (verb == "predict") return Predict(models, request, spec, body, json);
  if (verb == "classify") {
    wire::ClassificationRequest message;
    wire::ClassificationResponse answer;
    *message.mutable_model_spec() = spec;
    status = ReadExamplesBody(body, message.mutable_input());
    if (status.ok()) status = models.Classify(request, message, &answer);
    if (status.ok()) *json = WriteJson(answer);
    return status;
  }
  if (verb == "regress") {
    wire::RegressionRequest message;
    wire::RegressionResponse answer;
    *message.mutable_model_spec() = spec;
    status = ReadExamplesBody(body, message.mutable_input());
    if (status.ok()) status = models.Regress(request, message, &answer);
    if (status.ok()) *json = WriteJson(answer);
    return status;
  }
  return Bad("expected :predict, :classify or :regress, got :" + verb);
}

Status Get(Models& models, const wire::ModelSpec& spec, const std::string& verb,
           std::string* json) {
  Status status;
  if (verb == "metadata") {
    wire::GetModelMetadataRequest message;
    wire::GetModelMetadataResponse answer;
    *message.mutable_model_spec() = spec;
    message.add_metadata_field("signature_def");
    status = models.GetModelMetadata(message, &answer);
    return status.ok() ? WriteJson(answer, json) : status;
  }
  wire::GetModelStatusRequest message;
  wire::GetModelStatusResponse answer;
  *message.mutable_model_spec() = spec;
  status = models.GetModelStatus(message, &answer);
  return status.ok() ? WriteJson(answer, json) : status;
}

std::string Quoted(const std::string& text) {
  rapidjson::StringBuffer out;
  rapidjson::Writer<rapidjson::StringBuffer> writer(out);
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
  return out.GetString();
}

// All models by name, with the states of their versions.
std::string ListModels(const Models& models) {
  std::string list;
  for (const auto& entry : models.by_name()) {
    wire::GetModelStatusRequest message;
    wire::GetModelStatusResponse answer;
    message.mutable_model_spec()->set_name(entry.first);
    std::string states;
    Status status = models.GetModelStatus(message, &answer);
    if (status.ok()) status = WriteJson(answer, &states);
    if (!status.ok()) states = WriteError(status.error_message());
    list += (list.empty() ? "" : ", ") + Quoted(entry.first) + ": " + states;
  }
  return "{\"models\": {" + list + "}}";
}

}  // namespace

int HttpStatus(StatusCode code) {
  switch (code) {
    case StatusCode::OK:
      return 200;
    case StatusCode::INVALID_ARGUMENT:
    case StatusCode::FAILED_PRECONDITION:
    case StatusCode::OUT_OF_RANGE:
      return 400;
    case StatusCode::UNAUTHENTICATED:
      return 401;
    case StatusCode::PERMISSION_DENIED:
      return 403;
    case StatusCode::NOT_FOUND:
      return 404;
    case StatusCode::ALREADY_EXISTS:
    case StatusCode::ABORTED:
      return 409;
    case StatusCode::RESOURCE_EXHAUSTED:
      return 429;
    case StatusCode::CANCELLED:
      return 499;
    case StatusCode::UNIMPLEMENTED:
      return 501;
    case StatusCode::UNAVAILABLE:
      return 503;
    case StatusCode::DEADLINE_EXCEEDED:
      return 504;
    default:
      return 500;
  }
}

RestAnswer AnswerRest(Models& models, const Request& request, const std::string& method,
                      const std::string& path, const std::string& body) {
  wire::ModelSpec spec;
  std::string verb;
  RestAnswer answer;
  if (method == "GET" && (path == "/v1/models" || path == "/v1/models/")) {
    answer.json = ListModels(models);
    return answer;
  }
  Status status = ReadPath(method, path, &spec, &verb);
  if (status.ok()) {
    status = method == "POST" ? Post(models, request, spec, verb, body, &answer.json)
                              : Get(models, spec, verb, &answer.json);
  }
  answer.http_status = HttpStatus(status.error_code());
  if (!status.ok()) answer.json = WriteError(status.error_message());
  return answer;
}

}  // namespace group_embedding::server
