// Keeps the versions of a model up to date: one thread for each model.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "serving/server/models/model_versions.h"

namespace group_embedding::server {

// Makes a loaded model ready: sends it the requests of its warm-up file.
using WarmUp = std::function<Status(const ServedModel&)>;

// Where the versions of a model come from. Used by one thread at a time.
class VersionSource {
 public:
  virtual ~VersionSource() = default;
  // Loads the versions that are there when the server starts.
  virtual Status Start() = 0;
  // Looks for new versions; called also after a Start that failed. ModelVersions has the errors.
  virtual void Poll() = 0;
};

// A folder of numbered SavedModels.
std::unique_ptr<VersionSource> FollowFolder(ModelVersions& versions, ServedModel::Loader loader,
                                            WarmUp warm_up);
// A publisher's target: docs/reference/deltas.md.
std::unique_ptr<VersionSource> FollowTarget(ModelVersions& versions, ServedModel::Loader loader,
                                            WarmUp warm_up);

// Polls a source on a thread of its own.
class Follower {
 public:
  Follower(ModelVersions& versions, std::unique_ptr<VersionSource> source, double poll_seconds)
      : versions_(versions), source_(std::move(source)), poll_seconds_(poll_seconds) {}
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  ~Follower() { Stop(); }

  // Blocks until the first version answers, or fails. Polls from then on, in both cases.
  Status Start();
  void Stop();

 private:
  void Run();

  ModelVersions& versions_;
  const std::unique_ptr<VersionSource> source_;
  const double poll_seconds_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace group_embedding::server
