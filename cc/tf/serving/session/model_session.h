// ModelSession: one of the two sessions of a served model.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"
#include "tf/serving/ops/served_request.h"

namespace group_embedding {

using NamedTensors = std::vector<std::pair<std::string, tensorflow::Tensor>>;

class ModelSession {
 public:
  // `folder`: of the SavedModel. `meta`: its graph, rewritten.
  static absl::Status Make(const std::string& folder, const tensorflow::MetaGraphDef& meta,
                           const tensorflow::ConfigProto& config,
                           std::unique_ptr<ModelSession>* session);
  ~ModelSession();

  // Restores the variables and tables of the checkpoint in the folder.
  absl::Status Restore();
  // Runs the initializer of the SavedModel.
  absl::Status Initialize();

  // Thread-safe. Builds what `Call` runs for these names. A first call without it does so itself,
  // which takes from milliseconds to seconds.
  absl::Status Prepare(const std::vector<std::string>& feeds,
                       const std::vector<std::string>& fetches,
                       const std::vector<std::string>& targets);
  // Thread-safe. Computes tensors from fed ones; ops find the request by ServedRequest::Current.
  // The calling thread runs all ops, unless the config of Make states threads between ops: ops of
  // one request are few, and handing them over takes longer than most of them.
  absl::Status Call(const std::vector<std::string>& feeds, const std::vector<std::string>& fetches,
                    const std::vector<std::string>& targets,
                    const std::vector<tensorflow::Tensor>& fed,
                    std::vector<tensorflow::Tensor>* fetched, ServedRequest* request = nullptr);

 private:
  ModelSession(std::string folder, const tensorflow::MetaGraphDef& meta, int inter_op_threads);

  absl::Status Find(const std::vector<std::string>& feeds, const std::vector<std::string>& fetches,
                    const std::vector<std::string>& targets,
                    tensorflow::Session::CallableHandle* handle);
  // The asset files of the model.
  void FeedAssets(NamedTensors* feeds) const;

  const std::string folder_;
  // Threads for ops side by side; null: the calling thread runs them.
  const std::unique_ptr<tensorflow::thread::ThreadPool> threads_;
  tensorflow::MetaGraphDef meta_;  // without the graph
  std::unique_ptr<tensorflow::Session> session_;
  std::mutex mutex_;  // of callables_
  std::map<std::string, tensorflow::Session::CallableHandle> callables_;
};

}  // namespace group_embedding
