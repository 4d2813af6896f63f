// The versions of one model: those that answer, and the states of all that were tried.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serving/server/models/served_model.h"
#include "serving/server/operations/metrics.h"
#include "tensorflow_serving/apis/model.pb.h"

namespace group_embedding::server {

// How a model's source is: where new versions come from.
struct SourceState {
  bool up = true;
  std::string error;            // of the last look, if it failed; or why a version was not taken
  int64_t newest_version = -1;  // in the source; -1: none was seen
  double last_seen = 0;         // seconds since 1970 of the last look that succeeded
  int64_t failures = 0;         // looks that failed, and versions that were refused
};

// A version as GetModelStatus tells it.
struct VersionState {
  enum State { kStart = 10, kLoading = 20, kAvailable = 30, kUnloading = 40, kEnd = 50 };
  int64_t version = 0;
  State state = kStart;
  Status status;
};

// Thread-safe. One thread, the model's follower, changes it.
class ModelVersions {
 public:
  explicit ModelVersions(ModelToServe config) : config_(std::move(config)) {}

  const ModelToServe& config() const { return config_; }
  RequestCounts& counts() { return counts_; }
  const RequestCounts& counts() const { return counts_; }

  // The version that a request asks for; the newest if it names none. NOT_FOUND names those there
  // are; UNAVAILABLE: the first one is being loaded.
  Status Find(const tensorflow::serving::ModelSpec& spec,
              std::shared_ptr<ServedModel>* found) const;
  std::vector<std::shared_ptr<ServedModel>> Served() const;  // the newest last

  // From now on these answer, and no others. Those that left are closed by `CloseUnused`.
  void Serve(std::vector<std::shared_ptr<ServedModel>> served);
  void SetLoading(int64_t version);
  void SetFailed(int64_t version, const Status& status);
  // The states of `version`, or of all versions for -1; empty if it is not known.
  std::vector<VersionState> States(int64_t version) const;

  // Closes those that left and that no request uses: not on a request's thread, as it takes time.
  void CloseUnused();

  SourceState source() const;
  void SetSource(const SourceState& source);

 private:
  const ModelToServe config_;
  RequestCounts counts_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<ServedModel>> served_, left_;
  std::map<int64_t, VersionState> others_;  // being loaded, failed, or ended; by version
  SourceState source_;
};

}  // namespace group_embedding::server
