#include "serving/server/protocol/json_answers.h"

#include <google/protobuf/util/json_util.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <charconv>
#include <cmath>

#include "serving/server/protocol/json_values.h"
#include "serving/server/protocol/tensors.h"

namespace group_embedding::server {
namespace {

namespace wire = tensorflow::serving;
using tensorflow::TensorProto;
using Writer = rapidjson::Writer<rapidjson::StringBuffer, rapidjson::UTF8<>, rapidjson::UTF8<>,
                                 rapidjson::CrtAllocator, rapidjson::kWriteNanAndInfFlag>;

// The shortest digits that read back as the same number, with a point: 3.0, 0.1, 1e-09.
template <typename T>
void WriteReal(T value, Writer* json) {
  if (!std::isfinite(value)) {
    json->Double(value);
    return;
  }
  char text[40];
  char* end = std::to_chars(text, text + sizeof(text) - 2, value).ptr;
  const std::string_view digits(text, end - text);
  if (digits.find_first_of(".e") == std::string_view::npos) {
    *end++ = '.';
    *end++ = '0';
  }
  json->RawValue(text, end - text, rapidjson::kNumberType);
}

void WriteBytes(const std::string& bytes, bool as_base64, Writer* json) {
  as_base64 = as_base64 || !IsUtf8(bytes);  // JSON's strings are UTF-8
  const std::string text = as_base64 ? ToBase64(bytes) : bytes;
  if (as_base64) {
    json->StartObject();
    json->Key("b64");
  }
  json->String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
  if (as_base64) json->EndObject();
}

float HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
  return bits & 0x8000 ? -value : value;
}

float Bfloat16Value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

Status WriteElement(const TensorProto& tensor, int i, bool as_base64, Writer* json) {
  switch (tensor.dtype()) {
    case tensorflow::DT_FLOAT:
      return WriteReal(tensor.float_val(i), json), Status::OK;
    case tensorflow::DT_DOUBLE:
      return WriteReal(tensor.double_val(i), json), Status::OK;
    case tensorflow::DT_HALF:
      return WriteReal(HalfValue(tensor.half_val(i)), json), Status::OK;
    case tensorflow::DT_BFLOAT16:
      return WriteReal(Bfloat16Value(tensor.half_val(i)), json), Status::OK;
    case tensorflow::DT_INT64:
      return json->Int64(tensor.int64_val(i)), Status::OK;
    case tensorflow::DT_UINT64:
      return json->Uint64(tensor.uint64_val(i)), Status::OK;
    case tensorflow::DT_UINT32:
      return json->Uint(tensor.uint32_val(i)), Status::OK;
    case tensorflow::DT_INT32:
    case tensorflow::DT_INT16:
    case tensorflow::DT_INT8:
    case tensorflow::DT_UINT16:
    case tensorflow::DT_UINT8:
      return json->Int(tensor.int_val(i)), Status::OK;
    case tensorflow::DT_BOOL:
      return json->Bool(tensor.bool_val(i)), Status::OK;
    case tensorflow::DT_STRING:
      return WriteBytes(tensor.string_val(i), as_base64, json), Status::OK;
    default:
      return Status(StatusCode::UNIMPLEMENTED,
                    "REST has no values of " + DtypeName(tensor.dtype()));
  }
}

// Writes the dims from `depth` on as nested lists; `at` is the next element.
Status WriteNested(const TensorProto& tensor, int depth, bool as_base64, int* at, Writer* json) {
  if (depth == tensor.tensor_shape().dim_size())
    return WriteElement(tensor, (*at)++, as_base64, json);
  json->StartArray();
  for (int64_t i = 0; i < tensor.tensor_shape().dim(depth).size(); ++i) {
    Status status = WriteNested(tensor, depth + 1, as_base64, at, json);
    if (!status.ok()) return status;
  }
  json->EndArray();
  return Status::OK;
}

// An output, and how far its rows are written.
struct Output {
  std::string name;
  const TensorProto* tensor = nullptr;
  bool as_base64 = false;
  int at = 0;
};

std::vector<Output> OutputsOf(const wire::PredictResponse& answer) {
  const std::string suffix = "_bytes";
  std::vector<Output> outputs;
  for (const auto& [name, tensor] : answer.outputs()) {
    const bool as_base64 = name.size() >= suffix.size() &&
                           name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
    outputs.push_back({name, &tensor, as_base64});
  }
  std::sort(outputs.begin(), outputs.end(),
            [](const Output& a, const Output& b) { return a.name < b.name; });
  return outputs;
}

void WriteName(const std::string& name, Writer* json) {
  json->Key(name.data(), static_cast<rapidjson::SizeType>(name.size()));
}

Status WriteColumns(std::vector<Output>& outputs, Writer* json) {
  json->Key("outputs");
  const bool named = outputs.size() != 1;
  if (named) json->StartObject();
  for (Output& output : outputs) {
    if (named) WriteName(output.name, json);
    Status status = WriteNested(*output.tensor, 0, output.as_base64, &output.at, json);
    if (!status.ok()) return status;
  }
  if (named) json->EndObject();
  return Status::OK;
}

Status WriteRows(std::vector<Output>& outputs, Writer* json) {
  int64_t rows = -1;
  for (const Output& output : outputs) {
    const auto& shape = output.tensor->tensor_shape();
    const int64_t own = shape.dim_size() == 0 ? -1 : shape.dim(0).size();
    if (own >= 0 && (rows < 0 || own == rows)) {
      rows = own;
      continue;
    }
    return Status(StatusCode::INVALID_ARGUMENT,
                  "output '" + output.name +
                      "' has no row for each sample: send \"inputs\" in place of \"instances\"");
  }
  const bool named = outputs.size() != 1;
  json->Key("predictions");
  json->StartArray();
  for (int64_t row = 0; row < rows; ++row) {
    if (named) json->StartObject();
    for (Output& output : outputs) {
      if (named) WriteName(output.name, json);
      Status status = WriteNested(*output.tensor, 1, output.as_base64, &output.at, json);
      if (!status.ok()) return status;
    }
    if (named) json->EndObject();
  }
  json->EndArray();
  return Status::OK;
}

// Protobuf's own JSON, with the messages' field names and with fields that have their default.
template <typename Message>
Status Print(const Message& message, std::string* json) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(message, json, options);
  return status.ok() ? Status::OK : Status(StatusCode::INTERNAL, std::string(status.message()));
}

}  // namespace

Status WriteFlat(const TensorProto& tensor, std::string* json) {
  int64_t elements = 1;
  for (const auto& dim : tensor.tensor_shape().dim()) elements *= dim.size();
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  Status status;
  writer.StartArray();
  for (int i = 0; status.ok() && i < elements; ++i) {
    status = WriteElement(tensor, i, false, &writer);
  }
  writer.EndArray();
  json->assign(buffer.GetString(), buffer.GetSize());
  return status;
}

Status WriteJson(const wire::PredictResponse& answer, JsonFormat format, std::string* text) {
  rapidjson::StringBuffer buffer;
  Writer json(buffer);
  json.StartObject();
  std::vector<Output> outputs = OutputsOf(answer);
  Status status =
      format == JsonFormat::kRow ? WriteRows(outputs, &json) : WriteColumns(outputs, &json);
  json.EndObject();
  text->assign(buffer.GetString(), buffer.GetSize());
  return status;
}

std::string WriteJson(const wire::ClassificationResponse& answer) {
  rapidjson::StringBuffer buffer;
  Writer json(buffer);
  json.StartObject();
  json.Key("results");
  json.StartArray();
  for (const auto& classes : answer.result().classifications()) {
    json.StartArray();
    for (const auto& one : classes.classes()) {
      json.StartArray();
      WriteBytes(one.label(), false, &json);
      WriteReal(one.score(), &json);
      json.EndArray();
    }
    json.EndArray();
  }
  json.EndArray();
  json.EndObject();
  return buffer.GetString();
}

std::string WriteJson(const wire::RegressionResponse& answer) {
  rapidjson::StringBuffer buffer;
  Writer json(buffer);
  json.StartObject();
  json.Key("results");
  json.StartArray();
  for (const auto& one : answer.result().regressions()) WriteReal(one.value(), &json);
  json.EndArray();
  json.EndObject();
  return buffer.GetString();
}

Status WriteJson(const wire::GetModelStatusResponse& answer, std::string* json) {
  return Print(answer, json);
}

Status WriteJson(const wire::GetModelMetadataResponse& answer, std::string* json) {
  wire::SignatureDefMap signatures;
  std::string spec, map;
  const auto found = answer.metadata().find("signature_def");
  if (found == answer.metadata().end() || !found->second.UnpackTo(&signatures)) {
    return Status(StatusCode::INTERNAL, "the answer has no signature_def");
  }
  Status status = Print(answer.model_spec(), &spec);
  if (status.ok()) status = Print(signatures, &map);
  *json = "{\"model_spec\": " + spec + ", \"metadata\": {\"signature_def\": " + map + "}}\n";
  return status;
}

std::string WriteError(const std::string& sentence) {
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> json(buffer);
  json.StartObject();
  json.Key("error");
  // A name of the request may be other bytes, or be cut in the middle of a character.
  std::string text = sentence;
  if (!IsUtf8(text)) {
    for (char& c : text) c = static_cast<unsigned char>(c) < 128 ? c : '?';
  }
  json.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
  json.EndObject();
  return buffer.GetString();
}

}  // namespace group_embedding::server
