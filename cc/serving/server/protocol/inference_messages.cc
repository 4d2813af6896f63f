#include "serving/server/protocol/inference_messages.h"

#include <cstring>

#include "serving/server/models/numbered_versions.h"
#include "serving/server/protocol/tensors.h"
#include "tensorflow/core/framework/types.pb.h"

namespace group_embedding::server {
namespace {

using tensorflow::TensorProto;
using Contents = inference::InferTensorContents;

struct Datatype {
  const char* name;
  tensorflow::DataType dtype;
};

constexpr Datatype kDatatypes[] = {
    {"BOOL", tensorflow::DT_BOOL},     {"UINT8", tensorflow::DT_UINT8},
    {"UINT16", tensorflow::DT_UINT16}, {"UINT32", tensorflow::DT_UINT32},
    {"UINT64", tensorflow::DT_UINT64}, {"INT8", tensorflow::DT_INT8},
    {"INT16", tensorflow::DT_INT16},   {"INT32", tensorflow::DT_INT32},
    {"INT64", tensorflow::DT_INT64},   {"FP16", tensorflow::DT_HALF},
    {"FP32", tensorflow::DT_FLOAT},    {"FP64", tensorflow::DT_DOUBLE},
    {"BF16", tensorflow::DT_BFLOAT16}, {"BYTES", tensorflow::DT_STRING},
};
const char kSignature[] = "signature_name";  // a parameter of a request

Status Bad(const std::string& what) { return Status(StatusCode::INVALID_ARGUMENT, what); }

// The values of the field that a datatype has.
void TakeContents(const Contents& from, TensorProto* to) {
  switch (to->dtype()) {
    case tensorflow::DT_BOOL:
      for (const bool value : from.bool_contents()) to->add_bool_val(value);
      break;
    case tensorflow::DT_INT8:
    case tensorflow::DT_INT16:
    case tensorflow::DT_INT32:
      for (const int32_t value : from.int_contents()) to->add_int_val(value);
      break;
    case tensorflow::DT_UINT8:
    case tensorflow::DT_UINT16:
      for (const uint32_t value : from.uint_contents()) to->add_int_val(static_cast<int>(value));
      break;
    case tensorflow::DT_UINT32:
      for (const uint32_t value : from.uint_contents()) to->add_uint32_val(value);
      break;
    case tensorflow::DT_INT64:
      for (const int64_t value : from.int64_contents()) to->add_int64_val(value);
      break;
    case tensorflow::DT_UINT64:
      for (const uint64_t value : from.uint64_contents()) to->add_uint64_val(value);
      break;
    case tensorflow::DT_FLOAT:
      for (const float value : from.fp32_contents()) to->add_float_val(value);
      break;
    case tensorflow::DT_DOUBLE:
      for (const double value : from.fp64_contents()) to->add_double_val(value);
      break;
    case tensorflow::DT_STRING:
      for (const std::string& value : from.bytes_contents()) to->add_string_val(value);
      break;
    default:  // of 16 bits: the protocol has no field for them
      break;
  }
}

int NumContents(const Contents& contents) {
  return contents.bool_contents_size() + contents.int_contents_size() +
         contents.int64_contents_size() + contents.uint_contents_size() +
         contents.uint64_contents_size() + contents.fp32_contents_size() +
         contents.fp64_contents_size() + contents.bytes_contents_size();
}

// Each string is 4 bytes of its length, the lowest first, and its bytes.
bool ReadStrings(const std::string& raw, TensorProto* tensor) {
  size_t at = 0;
  while (at < raw.size()) {
    uint32_t size = 0;
    if (raw.size() - at < sizeof(size)) return false;
    std::memcpy(&size, raw.data() + at, sizeof(size));
    at += sizeof(size);
    if (raw.size() - at < size) return false;
    tensor->add_string_val(raw.data() + at, size);
    at += size;
  }
  return true;
}

Status ReadInput(const inference::ModelInferRequest::InferInputTensor& input,
                 const std::string* raw, TensorProto* tensor) {
  if (Status status = ReadDatatype(input.datatype(), tensor); !status.ok()) return status;
  int64_t elements = 1;
  tensor->mutable_tensor_shape();
  for (const int64_t dim : input.shape()) {
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements)) {
      return Bad("expected dims of 0 or more, whose product fits into 64 bits");
    }
    tensor->mutable_tensor_shape()->add_dim()->set_size(dim);
  }
  int64_t given = 0;
  if (raw == nullptr) {
    TakeContents(input.contents(), tensor);
    given = NumContents(input.contents());
  } else if (tensor->dtype() == tensorflow::DT_STRING) {
    if (!ReadStrings(*raw, tensor)) return Bad("the bytes are no strings with their lengths");
    given = tensor->string_val_size();
  } else {
    tensor->set_tensor_content(*raw);  // whose size is checked when the model gets it
    if (raw->empty() == (elements == 0)) return Status::OK;
    return Bad("expected " + std::to_string(elements) + " elements, as in its shape, got " +
               std::to_string(raw->size()) + " bytes");
  }
  if (given == elements) return Status::OK;
  return Bad("expected " + std::to_string(elements) + " elements, as in its shape, got " +
             std::to_string(given));
}

}  // namespace

Status ReadDatatype(const std::string& name, TensorProto* tensor) {
  for (const Datatype& known : kDatatypes) {
    if (name != known.name) continue;
    tensor->set_dtype(known.dtype);
    return Status::OK;
  }
  return Bad("unknown datatype '" + name.substr(0, 50) + "'");
}

void WriteContent(const TensorProto& tensor, std::string* raw) {
  if (tensor.dtype() != tensorflow::DT_STRING) return WriteRaw(tensor, raw);
  for (const std::string& value : tensor.string_val()) {
    const auto size = static_cast<uint32_t>(value.size());
    raw->append(reinterpret_cast<const char*>(&size), sizeof(size));
    raw->append(value);
  }
}

std::string DatatypeOf(int32_t dtype) {
  for (const Datatype& known : kDatatypes) {
    if (dtype == known.dtype) return known.name;
  }
  return "";
}

Status ReadSpec(const std::string& name, const std::string& version,
                tensorflow::serving::ModelSpec* spec) {
  spec->set_name(name);
  if (version.empty()) return Status::OK;
  const int64_t number = AsVersion(version);
  if (number < 0)
    return Bad("expected a version of at most 2^63 - 1, got " + version.substr(0, 50));
  spec->mutable_version()->set_value(number);
  return Status::OK;
}

Status ToPredict(const inference::ModelInferRequest& request,
                 tensorflow::serving::PredictRequest* predict) {
  tensorflow::serving::ModelSpec* spec = predict->mutable_model_spec();
  if (Status status = ReadSpec(request.model_name(), request.model_version(), spec); !status.ok()) {
    return status;
  }
  const auto signature = request.parameters().find(kSignature);
  if (signature != request.parameters().end()) {
    spec->set_signature_name(signature->second.string_param());
  }
  const bool is_raw = request.raw_input_contents_size() > 0;
  if (is_raw && request.raw_input_contents_size() != request.inputs_size()) {
    return Bad("raw_input_contents: expected one for each of " +
               std::to_string(request.inputs_size()) + " inputs, got " +
               std::to_string(request.raw_input_contents_size()));
  }
  for (int i = 0; i < request.inputs_size(); ++i) {
    const auto& input = request.inputs(i);
    const std::string where = "input '" + input.name().substr(0, 200) + "': ";
    if (predict->inputs().count(input.name()) != 0) return Bad(where + "expected it once");
    const Status status = ReadInput(input, is_raw ? &request.raw_input_contents(i) : nullptr,
                                    &(*predict->mutable_inputs())[input.name()]);
    if (!status.ok()) return Bad(where + status.error_message());
  }
  for (const auto& output : request.outputs()) predict->add_output_filter(output.name());
  return Status::OK;
}

Status ToInfer(const tensorflow::serving::PredictResponse& predict,
               const inference::ModelInferRequest& request, inference::ModelInferResponse* answer) {
  answer->set_model_name(request.model_name());
  answer->set_model_version(std::to_string(predict.model_spec().version().value()));
  answer->set_id(request.id());
  std::vector<std::string> names;
  for (const auto& output : request.outputs()) names.push_back(output.name());
  if (names.empty()) {
    for (const auto& entry : predict.outputs()) names.push_back(entry.first);
    std::sort(names.begin(), names.end());
  }
  for (const std::string& name : names) {
    const TensorProto& tensor = predict.outputs().at(name);
    auto* output = answer->add_outputs();
    output->set_name(name);
    output->set_datatype(DatatypeOf(tensor.dtype()));
    if (output->datatype().empty()) {
      return Status(StatusCode::UNIMPLEMENTED,
                    "output '" + name + "': the protocol has no " + DtypeName(tensor.dtype()));
    }
    for (const auto& dim : tensor.tensor_shape().dim()) output->add_shape(dim.size());
    WriteContent(tensor, answer->add_raw_output_contents());
  }
  return Status::OK;
}

}  // namespace group_embedding::server
