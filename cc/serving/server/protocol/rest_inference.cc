#include "serving/server/protocol/rest_inference.h"

#include <google/protobuf/util/json_util.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <regex>
#include <set>

#include "serving/server/protocol/inference_messages.h"
#include "serving/server/protocol/json_answers.h"
#include "serving/server/protocol/json_values.h"
#include "serving/server/protocol/rest_models.h"
#include "serving/server/protocol/tensors.h"

namespace group_embedding::server {
namespace {

using rapidjson::Value;
using tensorflow::TensorProto;
using Writer = rapidjson::Writer<rapidjson::StringBuffer>;

const char kJson[] = "application/json";

Status Bad(const std::string& what) { return Status(StatusCode::INVALID_ARGUMENT, what); }

std::string TextOf(const Value& string) {
  return std::string(string.GetString(), string.GetStringLength());
}

// A string of an object; false: it has none of that key.
bool ReadText(const Value& object, const char* key, std::string* text) {
  if (!object.HasMember(key) || !object[key].IsString()) return false;
  *text = TextOf(object[key]);
  return true;
}

const Value* ParameterOf(const Value& object, const char* key) {
  if (!object.HasMember("parameters") || !object["parameters"].IsObject()) return nullptr;
  const Value& parameters = object["parameters"];
  return parameters.HasMember(key) ? &parameters[key] : nullptr;
}

bool IsTrue(const Value* value) { return value != nullptr && value->IsBool() && value->GetBool(); }

// The bytes of tensors behind the JSON of a body, which inputs take one after the other.
struct Binary {
  const std::string& text;
  size_t at;

  bool Take(int64_t bytes, std::string* taken) {
    if (bytes < 0 || static_cast<size_t>(bytes) > text.size() - at) return false;
    taken->assign(text, at, static_cast<size_t>(bytes));
    at += static_cast<size_t>(bytes);
    return true;
  }
};

Status ReadInput(const Value& json, Binary* binary,
                 inference::ModelInferRequest::InferInputTensor* input, std::string* raw) {
  if (!ReadText(json, "datatype", input->mutable_datatype())) return Bad("expected a datatype");
  if (!json.HasMember("shape") || !json["shape"].IsArray()) return Bad("expected a shape");
  for (const Value& dim : json["shape"].GetArray()) {
    if (!dim.IsInt64()) return Bad("shape: expected integers");
    input->add_shape(dim.GetInt64());
  }
  if (const Value* bytes = ParameterOf(json, "binary_data_size"); bytes != nullptr) {
    if (bytes->IsInt64() && binary->Take(bytes->GetInt64(), raw)) return Status::OK;
    return Bad("binary_data_size: expected so many bytes behind the JSON of the body");
  }
  if (!json.HasMember("data")) return Bad("expected data, or binary_data_size");
  TensorProto tensor;
  std::vector<int64_t> dims;
  Status status = ReadDatatype(input->datatype(), &tensor);
  if (status.ok()) status = AddElements(json["data"], &dims, &tensor);
  if (status.ok()) WriteContent(tensor, raw);
  return status;
}

Status ReadBody(const HttpRequest& http, inference::ModelInferRequest* message,
                std::set<std::string>* binary_outputs, bool* all_binary) {
  const bool has_binary = http.json_bytes >= 0;
  if (has_binary && static_cast<size_t>(http.json_bytes) > http.body.size()) {
    return Bad("Inference-Header-Content-Length: expected at most the bytes of the body");
  }
  const size_t json_bytes = has_binary ? static_cast<size_t>(http.json_bytes) : http.body.size();
  rapidjson::Document json;
  if (Status status = ParseObject(http.body.substr(0, json_bytes), &json); !status.ok()) {
    return status;
  }
  ReadText(json, "id", message->mutable_id());
  if (const Value* name = ParameterOf(json, "signature_name");
      name != nullptr && name->IsString()) {
    (*message->mutable_parameters())["signature_name"].set_string_param(TextOf(*name));
  }
  *all_binary = IsTrue(ParameterOf(json, "binary_data_output"));
  if (!json.HasMember("inputs") || !json["inputs"].IsArray())
    return Bad("expected a list \"inputs\"");
  Binary binary{http.body, json_bytes};
  for (const Value& value : json["inputs"].GetArray()) {
    auto* input = message->add_inputs();
    if (!value.IsObject() || !ReadText(value, "name", input->mutable_name())) {
      return Bad("inputs: expected objects with a name");
    }
    const Status status = ReadInput(value, &binary, input, message->add_raw_input_contents());
    if (!status.ok()) {
      return Bad("input '" + input->name().substr(0, 200) + "': " + status.error_message());
    }
  }
  if (binary.at != http.body.size()) return Bad("expected no bytes behind those of the inputs");
  if (!json.HasMember("outputs")) return Status::OK;
  if (!json["outputs"].IsArray()) return Bad("expected a list \"outputs\"");
  for (const Value& value : json["outputs"].GetArray()) {
    std::string name;
    if (!value.IsObject() || !ReadText(value, "name", &name)) {
      return Bad("outputs: expected objects with a name");
    }
    message->add_outputs()->set_name(name);
    const Value* wanted = ParameterOf(value, "binary_data");
    if (IsTrue(wanted) || (wanted == nullptr && *all_binary)) binary_outputs->insert(name);
  }
  return Status::OK;
}

void WriteText(const std::string& text, Writer* json) {
  json->String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

Status WriteAnswer(const wire::PredictResponse& predicted,
                   const inference::ModelInferRequest& asked,
                   const std::set<std::string>& binary_outputs, bool all_binary,
                   HttpAnswer* answer) {
  inference::ModelInferResponse message;
  if (Status status = ToInfer(predicted, asked, &message); !status.ok()) return status;
  rapidjson::StringBuffer buffer;
  Writer json(buffer);
  std::string binary;
  bool any_binary = false;
  json.StartObject();
  json.Key("model_name");
  WriteText(message.model_name(), &json);
  json.Key("model_version");
  WriteText(message.model_version(), &json);
  if (!message.id().empty()) {
    json.Key("id");
    WriteText(message.id(), &json);
  }
  json.Key("outputs");
  json.StartArray();
  for (int i = 0; i < message.outputs_size(); ++i) {
    const auto& output = message.outputs(i);
    json.StartObject();
    json.Key("name");
    WriteText(output.name(), &json);
    json.Key("datatype");
    WriteText(output.datatype(), &json);
    json.Key("shape");
    json.StartArray();
    for (const int64_t dim : output.shape()) json.Int64(dim);
    json.EndArray();
    const bool is_binary =
        asked.outputs().empty() ? all_binary : binary_outputs.count(output.name()) != 0;
    if (is_binary) {
      any_binary = true;
      json.Key("parameters");
      json.StartObject();
      json.Key("binary_data_size");
      json.Uint64(message.raw_output_contents(i).size());
      json.EndObject();
      binary += message.raw_output_contents(i);
    } else {
      std::string data;
      const Status status = WriteFlat(predicted.outputs().at(output.name()), &data);
      if (!status.ok()) return status;
      json.Key("data");
      json.RawValue(data.data(), data.size(), rapidjson::kArrayType);
    }
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
  answer->type = any_binary ? "application/octet-stream" : kJson;
  answer->body.assign(buffer.GetString(), buffer.GetSize());
  if (any_binary) answer->json_bytes = static_cast<int64_t>(answer->body.size());
  answer->body += binary;
  return Status::OK;
}

Status InferOverRest(Models& models, const Request& request, const std::string& name,
                     const std::string& version, const HttpRequest& http, HttpAnswer* answer) {
  inference::ModelInferRequest message;
  std::set<std::string> binary_outputs;
  bool all_binary = false;
  wire::PredictRequest predict;
  wire::PredictResponse predicted;
  message.set_model_name(name);
  message.set_model_version(version);
  Status status = ReadBody(http, &message, &binary_outputs, &all_binary);
  if (status.ok()) status = ToPredict(message, &predict);
  if (status.ok()) status = models.Predict(request, predict, &predicted);
  if (!status.ok()) return status;
  return WriteAnswer(predicted, message, binary_outputs, all_binary, answer);
}

Status DescribeModel(const Models& models, const std::string& name, const std::string& version,
                     HttpAnswer* answer) {
  inference::ModelMetadataRequest message;
  inference::ModelMetadataResponse found;
  message.set_name(name);
  message.set_version(version);
  if (Status status = Metadata(models, message, &found); !status.ok()) return status;
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(found, &text, options).ok()) {
    return Status(StatusCode::INTERNAL, "metadata cannot be written as JSON");
  }
  // Protobuf writes 64-bit integers as strings; dims are numbers in the protocol.
  static const std::regex kNumber("\"(-?[0-9]+)\"(?=[,\\]])");
  const size_t inputs = text.find("\"inputs\"");
  answer->body =
      text.substr(0, inputs) +
      (inputs == std::string::npos ? "" : std::regex_replace(text.substr(inputs), kNumber, "$1"));
  answer->type = kJson;
  return Status::OK;
}

}  // namespace

HttpAnswer AnswerInference(Models& models, const Request& request, const HttpRequest& http) {
  static const std::regex kPath("/v2/models/([^/]+)(?:/versions/([0-9]+))?(/ready|/infer)?");
  HttpAnswer answer{200, kJson, "{}"};
  if (http.path == "/v2" || http.path == "/v2/") {
    answer.body = "{\"name\": \"ge-serve\", \"version\": \"" GE_SERVE_VERSION
                  "\", \"extensions\": [\"binary_tensor_data\"]}";
    return answer;
  }
  std::smatch found;
  const bool is_known = http.path.size() <= 1000 && std::regex_match(http.path, found, kPath);
  const bool is_infer = is_known && found[3] == "/infer";
  Status status;
  if (!is_known) {
    status = Status(StatusCode::NOT_FOUND, "unknown path " + http.path.substr(0, 200));
  } else if (is_infer != (http.method == "POST")) {
    return {405, kJson, WriteError(is_infer ? "expected POST" : "expected GET")};
  } else if (is_infer) {
    status = InferOverRest(models, request, found[1], found[2], http, &answer);
  } else if (found[3] == "/ready") {
    wire::ModelSpec spec;
    std::shared_ptr<ServedModel> served;
    status = ReadSpec(found[1], found[2], &spec);
    if (status.ok()) status = models.Find(spec, &served);
  } else {
    status = DescribeModel(models, found[1], found[2], &answer);
  }
  if (status.ok()) return answer;
  return {HttpStatus(status.error_code()), kJson, WriteError(status.error_message())};
}

}  // namespace group_embedding::server
