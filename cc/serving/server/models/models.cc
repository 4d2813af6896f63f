#include "serving/server/models/models.h"

#include <future>

#include "serving/server/models/answers.h"
#include "serving/server/models/warm_up.h"
#include "serving/server/operations/log.h"

namespace group_embedding::server {
namespace {

// A delta may have been applied after the version was found.
Status CheckVersion(const wire::ModelSpec& asked, const wire::ModelSpec& answered) {
  const int64_t version = answered.version().value();
  if (!asked.has_version() || asked.version().value() == version) return Status::OK;
  return Status(StatusCode::NOT_FOUND, "version " + std::to_string(asked.version().value()) +
                                           " of model '" + asked.name() + "' gave way to " +
                                           std::to_string(version));
}

int64_t NumExamples(const wire::PredictRequest&) { return 0; }

// The examples that a request brings to classify or regress.
template <typename Message>
int64_t NumExamples(const Message& message) {
  const wire::Input& input = message.input();
  return input.example_list().examples_size() + input.example_list_with_context().examples_size();
}

}  // namespace

Models::Models(const ServingLibrary& library, const Options& options)
    : loader_{library, options},
      gate_(options.threads, options.queue),
      joiner_(gate_, options.batching) {
  for (const ModelToServe& model : options.models) {
    by_name_[model.name] = std::make_unique<ModelVersions>(model);
  }
}

Status Models::Start() {
  const int64_t most_bytes = loader_.options.max_message_bytes;
  const WarmUp warm_up = [=](const ServedModel& served) {
    return SendWarmUpRequests(served, most_bytes);
  };
  std::vector<std::future<Status>> started;
  for (const auto& entry : by_name_) {
    ModelVersions& versions = *entry.second;
    auto source = versions.config().source.empty() ? FollowFolder(versions, loader_, warm_up)
                                                   : FollowTarget(versions, loader_, warm_up);
    followers_.push_back(
        std::make_unique<Follower>(versions, std::move(source), loader_.options.poll_seconds));
    Follower* follower = followers_.back().get();
    started.push_back(std::async(std::launch::async, [=] { return follower->Start(); }));
  }
  Status first_error;
  size_t failed = 0;
  auto result = started.begin();
  for (const auto& [name, versions] : by_name_) {
    const Status status = (result++)->get();
    if (status.ok()) continue;
    if (failed++ == 0) {
      first_error = Status(status.error_code(), "model '" + name + "': " + status.error_message());
    }
    if (by_name_.size() > 1) Log(name, "is not served yet: " + status.error_message());
  }
  return failed == by_name_.size() ? first_error : Status::OK;
}

void Models::Stop() {
  for (const auto& follower : followers_) follower->Stop();
}

std::string Models::NotReady() const {
  std::string lines;
  for (const auto& [name, versions] : by_name_) {
    if (!versions->Served().empty()) continue;
    const std::string error = versions->source().error;
    lines += "model '" + name + "': " + (error.empty() ? "is being loaded" : error) + "\n";
  }
  return lines;
}

Status Models::FindVersions(const wire::ModelSpec& spec, ModelVersions** versions) const {
  const auto found = by_name_.find(spec.name());
  if (found != by_name_.end()) {
    *versions = found->second.get();
    return Status::OK;
  }
  if (spec.name().empty()) {
    return Status(StatusCode::INVALID_ARGUMENT, "expected a name in model_spec, got none");
  }
  std::string names;
  for (const auto& entry : by_name_) names += (names.empty() ? "'" : ", '") + entry.first + "'";
  return Status(StatusCode::NOT_FOUND,
                "model '" + spec.name().substr(0, 200) + "' is not served; served is " + names);
}

Status Models::Find(const wire::ModelSpec& spec, std::shared_ptr<ServedModel>* served) const {
  ModelVersions* versions = nullptr;
  if (Status status = FindVersions(spec, &versions); !status.ok()) return status;
  return versions->Find(spec, served);
}

template <typename Message, typename Answer, typename F>
Status Models::Counted(Method method, const Request& request, const Message& message,
                       Answer* answered, F answer) {
  const auto start = std::chrono::steady_clock::now();
  ModelVersions* versions = nullptr;
  if (Status status = FindVersions(message.model_spec(), &versions); !status.ok()) return status;
  std::shared_ptr<ServedModel> served;
  Status status = versions->Find(message.model_spec(), &served);
  if (status.ok()) {
    status = answer(*served, [&](const Question& question, Response* response) {
      return joiner_.Predict(served, request, question, response);
    });
  }
  if (status.ok()) status = CheckVersion(message.model_spec(), answered->model_spec());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  if (const int64_t examples = NumExamples(message)) versions->counts().AddExamples(examples);
  versions->counts().Add(method, request.entrypoint, status.error_code(), taken.count());
  return status;
}

Status Models::Predict(const Request& request, const wire::PredictRequest& message,
                       wire::PredictResponse* answer) {
  return Counted(Method::kPredict, request, message, answer,
                 [&](const ServedModel& served, const Compute& compute) {
                   return AnswerPredict(served, compute, loader_.options.max_message_bytes, message,
                                        answer);
                 });
}

Status Models::Classify(const Request& request, const wire::ClassificationRequest& message,
                        wire::ClassificationResponse* answer) {
  return Counted(Method::kClassify, request, message, answer,
                 [&](const ServedModel& served, const Compute& compute) {
                   return AnswerClassify(served, compute, message, answer);
                 });
}

Status Models::Regress(const Request& request, const wire::RegressionRequest& message,
                       wire::RegressionResponse* answer) {
  return Counted(Method::kRegress, request, message, answer,
                 [&](const ServedModel& served, const Compute& compute) {
                   return AnswerRegress(served, compute, message, answer);
                 });
}

Status Models::GetModelMetadata(const wire::GetModelMetadataRequest& message,
                                wire::GetModelMetadataResponse* answer) const {
  if (message.metadata_field().empty()) {
    return Status(StatusCode::INVALID_ARGUMENT,
                  "metadata_field: expected 'signature_def', got none");
  }
  for (const std::string& field : message.metadata_field()) {
    if (field == "signature_def") continue;
    return Status(StatusCode::INVALID_ARGUMENT,
                  "metadata_field: expected 'signature_def', got '" + field.substr(0, 200) + "'");
  }
  std::shared_ptr<ServedModel> served;
  if (Status status = Find(message.model_spec(), &served); !status.ok()) return status;
  wire::SignatureDefMap map;
  ToProto(served->signatures(), &map);
  (*answer->mutable_metadata())["signature_def"].PackFrom(map);
  answer->mutable_model_spec()->set_name(message.model_spec().name());
  answer->mutable_model_spec()->mutable_version()->set_value(served->version());
  return Status::OK;
}

Status Models::GetModelStatus(const wire::GetModelStatusRequest& message,
                              wire::GetModelStatusResponse* answer) const {
  ModelVersions* versions = nullptr;
  const wire::ModelSpec& spec = message.model_spec();
  if (Status status = FindVersions(spec, &versions); !status.ok()) return status;
  int64_t wanted = spec.has_version() ? spec.version().value() : -1;
  if (!spec.version_label().empty()) {
    std::shared_ptr<ServedModel> served;
    if (Status status = versions->Find(spec, &served); !status.ok()) return status;
    wanted = served->version();
  }
  for (const VersionState& state : versions->States(wanted)) {
    auto* told = answer->add_model_version_status();
    told->set_version(state.version);
    told->set_state(static_cast<wire::ModelVersionStatus::State>(state.state));
    told->mutable_status()->set_error_code(
        static_cast<wire::StatusProto::Code>(state.status.error_code()));
    told->mutable_status()->set_error_message(state.status.error_message());
  }
  if (!answer->model_version_status().empty()) return Status::OK;
  return Status(StatusCode::NOT_FOUND, "model '" + spec.name() + "' has no version" +
                                           (wanted < 0 ? "" : " " + std::to_string(wanted)));
}

}  // namespace group_embedding::server
