#include "serving/server/protocol/signatures.h"

#include <rapidjson/document.h>

namespace group_embedding::server {
namespace {

using rapidjson::Value;

bool ParseTensor(const Value& json, TensorInfo* tensor) {
  if (!json.IsObject() || !json.HasMember("name") || !json["name"].IsString() ||
      !json.HasMember("dtype") || !json["dtype"].IsInt() || !json.HasMember("shape")) {
    return false;
  }
  tensor->tensor_name = json["name"].GetString();
  tensor->dtype = json["dtype"].GetInt();
  const auto read = [&](const char* key, std::string* text) {
    if (json.HasMember(key) && json[key].IsString()) *text = json[key].GetString();
  };
  read("part", &tensor->part);
  read("of", &tensor->of);
  if (json.HasMember("level") && json["level"].IsInt()) tensor->level = json["level"].GetInt();
  const Value& shape = json["shape"];
  if (shape.IsNull()) return true;
  if (!shape.IsArray()) return false;
  tensor->shape.emplace();
  for (const Value& dim : shape.GetArray()) {
    if (!dim.IsInt64()) return false;
    tensor->shape->push_back(dim.GetInt64());
  }
  return true;
}

bool ParseTensors(const Value& json, const char* key, std::map<std::string, TensorInfo>* tensors) {
  if (!json.HasMember(key) || !json[key].IsObject()) return false;
  for (const auto& entry : json[key].GetObject()) {
    if (!ParseTensor(entry.value, &(*tensors)[entry.name.GetString()])) return false;
  }
  return true;
}

void ToProto(const std::map<std::string, TensorInfo>& tensors,
             google::protobuf::Map<std::string, tensorflow::TensorInfo>* protos) {
  for (const auto& [key, tensor] : tensors) {
    tensorflow::TensorInfo& proto = (*protos)[key];
    proto.set_name(tensor.tensor_name);
    proto.set_dtype(static_cast<tensorflow::DataType>(tensor.dtype));
    if (!tensor.shape) {
      proto.mutable_tensor_shape()->set_unknown_rank(true);
      continue;
    }
    proto.mutable_tensor_shape();  // a scalar's shape has no dims, but is there
    for (const int64_t dim : *tensor.shape) proto.mutable_tensor_shape()->add_dim()->set_size(dim);
  }
}

template <typename T>
std::string NamesOf(const std::map<std::string, T>& named) {
  std::string names;
  for (const auto& entry : named) names += (names.empty() ? "'" : ", '") + entry.first + "'";
  return names.empty() ? "none" : names;
}

}  // namespace

Status ParseSignatures(const std::string& json, Signatures* signatures) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag>(json.data(), json.size());
  bool right = !document.HasParseError() && document.IsObject();
  if (right) {
    for (const auto& entry : document.GetObject()) {
      Signature& signature = (*signatures)[entry.name.GetString()];
      right = right && entry.value.IsObject() &&
              ParseTensors(entry.value, "inputs", &signature.inputs) &&
              ParseTensors(entry.value, "outputs", &signature.outputs);
      if (right && entry.value.HasMember("method_name") && entry.value["method_name"].IsString()) {
        signature.method_name = entry.value["method_name"].GetString();
      }
    }
  }
  if (right) return Status::OK;
  return Status(StatusCode::INTERNAL,
                "libge_serving described signatures as " + json.substr(0, 200));
}

Status FindInput(const Signature& signature, const std::string& name, const TensorInfo** input) {
  const auto found = signature.inputs.find(name);
  if (found != signature.inputs.end()) {
    *input = &found->second;
    return Status::OK;
  }
  return Status(StatusCode::INVALID_ARGUMENT, "input '" + name.substr(0, 200) +
                                                  "' is not in the signature, which has " +
                                                  NamesOf(signature.inputs));
}

Status FindSignature(const Signatures& signatures, const std::string& name,
                     const Signature** signature) {
  const auto found = signatures.find(name.empty() ? "serving_default" : name);
  if (found != signatures.end()) {
    *signature = &found->second;
    return Status::OK;
  }
  return Status(StatusCode::FAILED_PRECONDITION,
                "signature '" + (name.empty() ? "serving_default" : name) +
                    "' is not in the model, which has " + NamesOf(signatures));
}

void ToProto(const Signatures& signatures, tensorflow::serving::SignatureDefMap* proto) {
  for (const auto& [name, signature] : signatures) {
    tensorflow::SignatureDef& def = (*proto->mutable_signature_def())[name];
    def.set_method_name(signature.method_name);
    ToProto(signature.inputs, def.mutable_inputs());
    ToProto(signature.outputs, def.mutable_outputs());
  }
}

}  // namespace group_embedding::server
