#include <algorithm>
#include <map>
#include <set>

#include "serving/server/models/follower.h"
#include "serving/server/models/numbered_versions.h"
#include "serving/server/operations/log.h"

namespace group_embedding::server {
namespace {

class Folder : public VersionSource {
 public:
  Folder(ModelVersions& versions, ServedModel::Loader loader, WarmUp warm_up)
      : versions_(versions), loader_(loader), warm_up_(std::move(warm_up)) {}

  Status Start() override {
    std::map<int64_t, std::string> wanted;
    if (Status status = VersionsToServe(versions_.config(), &wanted); !status.ok()) return status;
    Status status = Take(wanted);
    return loaded_.empty() ? status : Status::OK;
  }

  void Poll() override {
    SourceState state = versions_.source();
    std::map<int64_t, std::string> wanted;
    Status status = VersionsToServe(versions_.config(), &wanted);
    state.up = status.ok();
    if (state.up) {
      state.newest_version = wanted.rbegin()->first;
      state.last_seen = Now();
      status = Take(wanted);
    }
    if (!status.ok() && status.error_message() != state.error) {
      Log(versions_.config().name, status.error_message());
      ++state.failures;
    }
    state.error = status.error_message();
    versions_.SetSource(state);
  }

 private:
  // Loads what is new, then serves what is wanted. A version that failed is not tried again.
  Status Take(const std::map<int64_t, std::string>& wanted) {
    Status first_error;
    bool changed = false;
    for (const auto& [version, path] : wanted) {
      if (loaded_.count(version)) continue;
      if (const auto failed = failed_.find(version); failed != failed_.end()) {
        first_error = failed->second;
        continue;
      }
      std::shared_ptr<ServedModel> served;
      versions_.SetLoading(version);
      Status status = loader_.Load(path, version, "", &served);
      if (status.ok()) status = warm_up_(*served);
      if (status.ok()) {
        loaded_[version] = served;
        changed = true;
        Log(versions_.config().name,
            "version " + std::to_string(version) + " is loaded from " + path);
      } else {
        versions_.SetFailed(version, status);
        first_error = failed_[version] = status;
      }
    }
    // A version that is not wanted any more goes once a wanted one answers.
    const bool one_wanted = std::any_of(wanted.begin(), wanted.end(), [&](const auto& entry) {
      return loaded_.count(entry.first) != 0;
    });
    if (one_wanted) {
      for (auto loaded = loaded_.begin(); loaded != loaded_.end();) {
        const bool stays = wanted.count(loaded->first) != 0;
        changed = changed || !stays;
        loaded = stays ? std::next(loaded) : loaded_.erase(loaded);
      }
    }
    if (changed) {
      std::vector<std::shared_ptr<ServedModel>> served;
      for (const auto& entry : loaded_) served.push_back(entry.second);
      versions_.Serve(std::move(served));
    }
    return first_error;
  }

  ModelVersions& versions_;
  const ServedModel::Loader loader_;
  const WarmUp warm_up_;
  std::map<int64_t, std::shared_ptr<ServedModel>> loaded_;
  std::map<int64_t, Status> failed_;
};

}  // namespace

std::unique_ptr<VersionSource> FollowFolder(ModelVersions& versions, ServedModel::Loader loader,
                                            WarmUp warm_up) {
  return std::make_unique<Folder>(versions, loader, std::move(warm_up));
}

}  // namespace group_embedding::server
