#include "serving/server/protocol/json_requests.h"

#include "serving/server/protocol/json_values.h"

namespace group_embedding::server {
namespace {

namespace wire = tensorflow::serving;
using rapidjson::Value;
using tensorflow::TensorProto;

Status Bad(const std::string& what) { return Status(StatusCode::INVALID_ARGUMENT, what); }

Status InFront(const std::string& where, const Status& status) {
  return status.ok() ? status : Bad(where + ": " + status.error_message());
}

std::string Names(const Signature& signature) {
  std::string names;
  for (const auto& entry : signature.inputs)
    names += (names.empty() ? "'" : ", '") + entry.first + "'";
  return names.empty() ? "none" : names;
}

std::string TextOf(const Value& string) {
  return std::string(string.GetString(), string.GetStringLength());
}

// The tensor of an input in the message, made with the signature's dtype.
Status TensorOf(const Signature& signature, const std::string& name, wire::PredictRequest* message,
                TensorProto** tensor) {
  const TensorInfo* input = nullptr;
  if (Status status = FindInput(signature, name, &input); !status.ok()) return status;
  *tensor = &(*message->mutable_inputs())[name];
  (*tensor)->set_dtype(static_cast<tensorflow::DataType>(input->dtype));
  return Status::OK;
}

void SetShape(const std::vector<int64_t>& dims, TensorProto* tensor) {
  tensor->mutable_tensor_shape();
  for (const int64_t dim : dims) tensor->mutable_tensor_shape()->add_dim()->set_size(dim);
}

// Whether the value names inputs: {"b64": ...} is a value.
bool NamesInputs(const Value& value) { return value.IsObject() && !IsBytes(value); }

Status ReadColumns(const Value& inputs, const Signature& signature, wire::PredictRequest* message) {
  const auto read = [&](const std::string& name, const Value& value) {
    TensorProto* tensor = nullptr;
    std::vector<int64_t> dims;
    if (Status status = TensorOf(signature, name, message, &tensor); !status.ok()) return status;
    Status status = AddElements(value, &dims, tensor);
    SetShape(dims, tensor);
    return InFront("input '" + name + "'", status);
  };
  if (!NamesInputs(inputs)) {
    if (signature.inputs.size() == 1) return read(signature.inputs.begin()->first, inputs);
    return Bad("inputs: expected an object with a value for each of " + Names(signature));
  }
  for (const auto& entry : inputs.GetObject()) {
    if (Status status = read(TextOf(entry.name), entry.value); !status.ok()) return status;
  }
  return Status::OK;
}

// One tensor that is filled instance by instance; all instances have the shape of the first.
struct Rows {
  TensorProto* tensor = nullptr;
  std::vector<int64_t> dims;
  int64_t count = 0;

  Status Add(const Value& value) {
    std::vector<int64_t> own;
    if (Status status = AddElements(value, &own, tensor); !status.ok()) return status;
    if (count++ == 0) dims = own;
    return own == dims ? Status::OK
                       : Bad("expected the shape of the first instance, got another one");
  }
};

Status ReadRows(const Value& instances, const Signature& signature, wire::PredictRequest* message) {
  if (!instances.IsArray() || instances.Empty()) {
    return Bad(std::string("instances: expected a list with one or more, got ") +
               (instances.IsArray() ? "an empty one" : KindOf(instances)));
  }
  std::map<std::string, Rows> rows;
  const auto read = [&](const std::string& name, const Value& value, rapidjson::SizeType i) {
    Rows& of_name = rows[name];
    Status status;
    if (of_name.tensor == nullptr) status = TensorOf(signature, name, message, &of_name.tensor);
    if (!status.ok()) return status;
    return InFront("instance " + std::to_string(i) + ", input '" + name + "'", of_name.Add(value));
  };
  const bool named = NamesInputs(instances[0]);
  if (!named && signature.inputs.size() != 1) {
    return Bad("instances: expected objects with a value for each of " + Names(signature));
  }
  for (rapidjson::SizeType i = 0; i < instances.Size(); ++i) {
    const Value& instance = instances[i];
    if (NamesInputs(instance) != named) {
      return Bad("instance " + std::to_string(i) + ": expected " +
                 (named ? "an object" : "a value") + " as in instance 0, got " + KindOf(instance));
    }
    Status status;
    if (!named) status = read(signature.inputs.begin()->first, instance, i);
    if (named) {
      for (const auto& entry : instance.GetObject()) {
        if (status.ok()) status = read(TextOf(entry.name), entry.value, i);
      }
    }
    if (!status.ok()) return status;
    for (const auto& [name, of_name] : rows) {
      if (of_name.count == i + 1) continue;
      return Bad("instance " + std::to_string(i) + ": expected input '" + name +
                 "' once in each instance");
    }
  }
  for (auto& [name, of_name] : rows) {
    of_name.dims.insert(of_name.dims.begin(), instances.Size());
    SetShape(of_name.dims, of_name.tensor);
  }
  return Status::OK;
}

// A feature of a tf.Example: a value, or a list of values of one kind.
Status ReadFeature(const Value& value, tensorflow::Feature* feature) {
  std::vector<const Value*> values;
  if (value.IsArray()) {
    for (const Value& element : value.GetArray()) values.push_back(&element);
  } else {
    values.push_back(&value);
  }
  bool whole = true;
  for (const Value* element : values) whole = whole && element->IsInt64();
  for (const Value* element : values) {
    if (IsBytes(*element)) {
      if (feature->has_int64_list() || feature->has_float_list())
        return Bad("expected values of one kind");
      Status status = ReadBytes(*element, feature->mutable_bytes_list()->add_value());
      if (!status.ok()) return status;
    } else if (element->IsNumber() && !feature->has_bytes_list()) {
      if (whole) {
        feature->mutable_int64_list()->add_value(element->GetInt64());
      } else {
        feature->mutable_float_list()->add_value(static_cast<float>(element->GetDouble()));
      }
    } else {
      return Bad(std::string("expected numbers or strings, got ") + KindOf(*element));
    }
  }
  return Status::OK;
}

Status ReadExample(const Value& value, tensorflow::Example* example) {
  if (!value.IsObject()) {
    return Bad(std::string("expected an object of features, got ") + KindOf(value));
  }
  example->mutable_features();
  for (const auto& entry : value.GetObject()) {
    const std::string name = TextOf(entry.name);
    Status status =
        ReadFeature(entry.value, &(*example->mutable_features()->mutable_feature())[name]);
    if (!status.ok()) return InFront("feature '" + name.substr(0, 200) + "'", status);
  }
  return Status::OK;
}

}  // namespace

Status ReadSignatureName(const Value& json, std::string* name) {
  if (!json.HasMember("signature_name")) return Status::OK;
  if (!json["signature_name"].IsString()) {
    return Bad(std::string("signature_name: expected a string, got ") +
               KindOf(json["signature_name"]));
  }
  *name = TextOf(json["signature_name"]);
  return Status::OK;
}

Status ReadPredictBody(const Value& json, const Signature& signature, wire::PredictRequest* message,
                       JsonFormat* format) {
  if (json.HasMember("inputs") == json.HasMember("instances")) {
    return Bad("expected one of \"instances\" and \"inputs\" in the body");
  }
  *format = json.HasMember("inputs") ? JsonFormat::kColumn : JsonFormat::kRow;
  return *format == JsonFormat::kColumn ? ReadColumns(json["inputs"], signature, message)
                                        : ReadRows(json["instances"], signature, message);
}

Status ReadExamplesBody(const Value& json, wire::Input* input) {
  if (!json.HasMember("examples") || !json["examples"].IsArray() || json["examples"].Empty()) {
    return Bad("expected a list \"examples\" with one or more in the body");
  }
  const bool has_context = json.HasMember("context");
  if (has_context) {
    Status status =
        ReadExample(json["context"], input->mutable_example_list_with_context()->mutable_context());
    if (!status.ok()) return InFront("context", status);
  }
  const Value& examples = json["examples"];
  for (rapidjson::SizeType i = 0; i < examples.Size(); ++i) {
    tensorflow::Example* example = has_context
                                       ? input->mutable_example_list_with_context()->add_examples()
                                       : input->mutable_example_list()->add_examples();
    Status status = ReadExample(examples[i], example);
    if (!status.ok()) return InFront("example " + std::to_string(i), status);
  }
  return Status::OK;
}

}  // namespace group_embedding::server
