// Classify and Regress: a batch of tf.Example in, classes and scores or values out.
#include <algorithm>

#include "serving/server/models/answers.h"
#include "serving/server/protocol/tensors.h"

namespace group_embedding::server {
namespace {

namespace wire = tensorflow::serving;

Status Bad(const std::string& what) { return Status(StatusCode::INVALID_ARGUMENT, what); }

// The serialized examples. The context stands in front of each: merging messages is appending them.
Status Serialize(const wire::Input& input, std::vector<std::string>* examples) {
  if (input.has_example_list()) {
    for (const auto& example : input.example_list().examples()) {
      examples->push_back(example.SerializeAsString());
    }
  } else if (input.has_example_list_with_context()) {
    const std::string context = input.example_list_with_context().context().SerializeAsString();
    for (const auto& example : input.example_list_with_context().examples()) {
      examples->push_back(context + example.SerializeAsString());
    }
  }
  return examples->empty() ? Bad("expected one example or more in the input, got none")
                           : Status::OK;
}

// Runs a signature of the method on the examples.
template <typename Message>
Status Run(const ServedModel& served, const Compute& compute, const Message& message,
           const std::string& method, int64_t* num_examples, Response* response) {
  const std::string& wanted = message.model_spec().signature_name();
  const std::string name = wanted.empty() ? "serving_default" : wanted;
  const Signature* signature = nullptr;
  Status status = FindSignature(served.signatures(), name, &signature);
  if (!status.ok()) return status;
  if (signature->method_name != method || signature->inputs.size() != 1) {
    return Bad("signature '" + name + "': expected method '" + method +
               "' and one input, got method '" + signature->method_name + "' and " +
               std::to_string(signature->inputs.size()));
  }
  std::vector<std::string> examples;
  if (status = Serialize(message.input(), &examples); !status.ok()) return status;
  std::vector<GeString> strings;
  for (const std::string& example : examples) strings.push_back({example.data(), example.size()});
  *num_examples = static_cast<int64_t>(strings.size());
  const GeTensor input = {
      signature->inputs.begin()->first.c_str(), GE_STRING, 1, num_examples, strings.data(),
      strings.size() * sizeof(GeString)};
  return compute({name, {input}, {}}, response);
}

template <typename Message>
void SetSpec(const Message& message, const Response& response, wire::ModelSpec* spec) {
  const std::string& name = message.model_spec().signature_name();
  spec->set_name(message.model_spec().name());
  spec->set_signature_name(name.empty() ? "serving_default" : name);
  spec->mutable_version()->set_value(response.version());
}

const GeTensor* FindOutput(const Response& response, const std::string& key) {
  for (size_t i = 0; i < response.size(); ++i) {
    if (response[i].name == key) return &response[i];
  }
  return nullptr;
}

// An output [examples, classes] of a dtype.
Status CheckOutput(const GeTensor& output, int32_t dtype, int64_t num_examples) {
  if (output.dtype == dtype && output.rank == 2 && output.dims[0] == num_examples)
    return Status::OK;
  return Bad(std::string("output '") + output.name + "': expected " + DtypeName(dtype) + " [" +
             std::to_string(num_examples) + ", classes], got " + DtypeName(output.dtype) +
             " of rank " + std::to_string(output.rank));
}

}  // namespace

Status AnswerClassify(const ServedModel& served, const Compute& compute,
                      const wire::ClassificationRequest& message,
                      wire::ClassificationResponse* answer) {
  int64_t num_examples = 0;
  Response response;
  Status status =
      Run(served, compute, message, "tensorflow/serving/classify", &num_examples, &response);
  if (!status.ok()) return status;
  const GeTensor* labels = FindOutput(response, "classes");
  const GeTensor* scores = FindOutput(response, "scores");
  if (labels == nullptr && scores == nullptr) {
    return Bad("expected output 'classes' or 'scores' in the signature, got neither");
  }
  if (labels != nullptr) status = CheckOutput(*labels, GE_STRING, num_examples);
  if (status.ok() && scores != nullptr) status = CheckOutput(*scores, GE_FLOAT, num_examples);
  if (!status.ok()) return status;
  const int64_t num_classes = (labels != nullptr ? labels : scores)->dims[1];
  if (labels != nullptr && scores != nullptr && scores->dims[1] != num_classes) {
    return Bad("outputs 'classes' and 'scores': expected one number of classes, got " +
               std::to_string(num_classes) + " and " + std::to_string(scores->dims[1]));
  }
  SetSpec(message, response, answer->mutable_model_spec());
  for (int64_t e = 0; e < num_examples; ++e) {
    auto* classes = answer->mutable_result()->add_classifications();
    for (int64_t c = 0; c < num_classes; ++c) {
      const int64_t i = e * num_classes + c;
      auto* one = classes->add_classes();
      if (scores != nullptr) one->set_score(static_cast<const float*>(scores->data)[i]);
      if (labels == nullptr) continue;
      const GeString& label = static_cast<const GeString*>(labels->data)[i];
      one->set_label(label.data, label.size);
    }
  }
  return Status::OK;
}

Status AnswerRegress(const ServedModel& served, const Compute& compute,
                     const wire::RegressionRequest& message, wire::RegressionResponse* answer) {
  int64_t num_examples = 0;
  Response response;
  Status status =
      Run(served, compute, message, "tensorflow/serving/regress", &num_examples, &response);
  if (!status.ok()) return status;
  const GeTensor* values = FindOutput(response, "outputs");
  if (values == nullptr) return Bad("expected output 'outputs' in the signature");
  const bool column = values->rank == 2 && values->dims[1] == 1;
  if (values->dtype != GE_FLOAT || !(values->rank == 1 || column) ||
      values->dims[0] != num_examples) {
    return Bad("output 'outputs': expected float [" + std::to_string(num_examples) + "] or [" +
               std::to_string(num_examples) + ", 1], got " + DtypeName(values->dtype) +
               " of rank " + std::to_string(values->rank));
  }
  SetSpec(message, response, answer->mutable_model_spec());
  for (int64_t e = 0; e < num_examples; ++e) {
    answer->mutable_result()->add_regressions()->set_value(
        static_cast<const float*>(values->data)[e]);
  }
  return Status::OK;
}

}  // namespace group_embedding::server
