// The models of a server by name, and how their requests are answered, whatever the protocol.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "serving/server/models/follower.h"
#include "serving/server/models/gate.h"
#include "serving/server/models/joiner.h"
#include "serving/server/models/model_versions.h"
#include "serving/server/models/request.h"
#include "tensorflow_serving/apis/classification.pb.h"
#include "tensorflow_serving/apis/get_model_metadata.pb.h"
#include "tensorflow_serving/apis/get_model_status.pb.h"
#include "tensorflow_serving/apis/predict.pb.h"
#include "tensorflow_serving/apis/regression.pb.h"

namespace group_embedding::server {

namespace wire = tensorflow::serving;

// Thread-safe once made.
class Models {
 public:
  Models(const ServingLibrary& library, const Options& options);

  // Loads all models, side by side, and follows their folders and sources. Blocks until each has a
  // version, or failed. A model that failed is tried again while others serve; the error of the
  // first one if all failed.
  Status Start();
  void Stop();
  // Whether each model has a version that answers.
  bool ready() const { return NotReady().empty(); }
  // The models that have none, each with its reason in a line.
  std::string NotReady() const;

  Status Predict(const Request& request, const wire::PredictRequest& message,
                 wire::PredictResponse* answer);
  Status Classify(const Request& request, const wire::ClassificationRequest& message,
                  wire::ClassificationResponse* answer);
  Status Regress(const Request& request, const wire::RegressionRequest& message,
                 wire::RegressionResponse* answer);
  Status GetModelMetadata(const wire::GetModelMetadataRequest& message,
                          wire::GetModelMetadataResponse* answer) const;
  Status GetModelStatus(const wire::GetModelStatusRequest& message,
                        wire::GetModelStatusResponse* answer) const;

  // The version of a model that a request asks for.
  Status Find(const wire::ModelSpec& spec, std::shared_ptr<ServedModel>* served) const;
  const std::map<std::string, std::unique_ptr<ModelVersions>>& by_name() const { return by_name_; }
  const Gate& gate() const { return gate_; }
  const Joiner& joiner() const { return joiner_; }

 private:
  // Finds the version, answers by `answer(served, compute)`, and counts the answer.
  template <typename Message, typename Answer, typename F>
  Status Counted(Method method, const Request& request, const Message& message, Answer* answered,
                 F answer);
  Status FindVersions(const wire::ModelSpec& spec, ModelVersions** versions) const;

  const ServedModel::Loader loader_;
  Gate gate_;
  Joiner joiner_;
  std::map<std::string, std::unique_ptr<ModelVersions>> by_name_;
  std::vector<std::unique_ptr<Follower>> followers_;
};

}  // namespace group_embedding::server
