#include "serving/server/protocol/inference.h"

#include "serving/server/protocol/inference_messages.h"

namespace group_embedding::server {

Status Infer(Models& models, const Request& request, const inference::ModelInferRequest& message,
             inference::ModelInferResponse* answer) {
  wire::PredictRequest predict;
  wire::PredictResponse predicted;
  Status status = ToPredict(message, &predict);
  if (status.ok()) status = models.Predict(request, predict, &predicted);
  return status.ok() ? ToInfer(predicted, message, answer) : status;
}

Status Metadata(const Models& models, const inference::ModelMetadataRequest& message,
                inference::ModelMetadataResponse* answer) {
  wire::ModelSpec spec;
  std::shared_ptr<ServedModel> served;
  const Signature* signature = nullptr;
  Status status = ReadSpec(message.name(), message.version(), &spec);
  if (status.ok()) status = models.Find(spec, &served);
  if (status.ok()) status = FindSignature(served->signatures(), "", &signature);
  if (!status.ok()) return status;
  answer->set_name(message.name());
  answer->set_platform("tensorflow_savedmodel");
  for (const auto& version : models.by_name().at(message.name())->Served()) {
    answer->add_versions(std::to_string(version->version()));
  }
  const auto add = [](const std::map<std::string, TensorInfo>& tensors, auto* list) {
    for (const auto& [name, tensor] : tensors) {
      auto* added = list->Add();
      added->set_name(name);
      added->set_datatype(DatatypeOf(tensor.dtype));
      if (!tensor.shape) continue;
      for (const int64_t dim : *tensor.shape) added->add_shape(dim);
    }
  };
  add(signature->inputs, answer->mutable_inputs());
  add(signature->outputs, answer->mutable_outputs());
  return Status::OK;
}

}  // namespace group_embedding::server
