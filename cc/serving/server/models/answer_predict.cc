#include <set>

#include "serving/server/models/answers.h"
#include "serving/server/protocol/tensors.h"

namespace group_embedding::server {
namespace {

namespace wire = tensorflow::serving;

const std::string& NameOf(const wire::ModelSpec& spec) {
  static const std::string kDefault = "serving_default";
  return spec.signature_name().empty() ? kDefault : spec.signature_name();
}

}  // namespace

Status AnswerPredict(const ServedModel& served, const Compute& compute, int64_t most_bytes,
                     const wire::PredictRequest& message, wire::PredictResponse* answer) {
  const std::string& name = NameOf(message.model_spec());
  const Signature* signature = nullptr;
  if (Status status = FindSignature(served.signatures(), name, &signature); !status.ok())
    return status;
  std::vector<const char*> outputs;
  std::set<std::string> filtered;
  for (const std::string& output : message.output_filter()) {
    if (!signature->outputs.count(output)) {
      return Status(StatusCode::INVALID_ARGUMENT,
                    "output_filter: signature '" + name + "' has no output '" + output + "'");
    }
    if (!filtered.insert(output).second) {
      return Status(StatusCode::INVALID_ARGUMENT,
                    "output_filter: expected output '" + output + "' once");
    }
    outputs.push_back(output.c_str());
  }
  InputTensors inputs(most_bytes);
  for (const auto& [key, tensor] : message.inputs()) {  // before a tensor is made of any
    const TensorInfo* input = nullptr;
    if (Status status = FindInput(*signature, key, &input); !status.ok()) return status;
  }
  for (const auto& [key, tensor] : message.inputs()) {
    if (Status status = inputs.Add(key, tensor); !status.ok()) return status;
  }
  Response response;
  Status status = compute({name, inputs.tensors(), outputs}, &response);
  if (!status.ok()) return status;
  answer->mutable_model_spec()->set_name(message.model_spec().name());
  answer->mutable_model_spec()->set_signature_name(name);
  answer->mutable_model_spec()->mutable_version()->set_value(response.version());
  for (size_t i = 0; status.ok() && i < response.size(); ++i) {
    status = ToProto(response[i], &(*answer->mutable_outputs())[response[i].name]);
  }
  return status;
}

}  // namespace group_embedding::server
