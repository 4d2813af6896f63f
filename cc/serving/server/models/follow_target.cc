#include <vector>

#include "serving/server/models/follower.h"
#include "serving/server/models/numbered_versions.h"
#include "serving/server/models/target_folder.h"
#include "serving/server/operations/log.h"

namespace group_embedding::server {
namespace {

// One model answers at a time. Deltas are applied to it in place; a new base, or a gap, needs
// another one, which is loaded beside it.
class Target : public VersionSource {
 public:
  Target(ModelVersions& versions, ServedModel::Loader loader, WarmUp warm_up)
      : versions_(versions),
        loader_(loader),
        warm_up_(std::move(warm_up)),
        target_(versions.config().source) {}

  // Without a version in the target, the model's own path is served until one comes.
  Status Start() override {
    Status status = Follow();
    if (served_ != nullptr) {
      Report(status);
      return Status::OK;
    }
    std::map<int64_t, std::string> own;
    if (Status own_status = VersionsToServe(versions_.config(), &own); !own_status.ok()) {
      return status.ok() ? own_status : status;
    }
    const auto& [version, path] = *own.rbegin();
    if (Status own_status = Load(path, version, {}); !own_status.ok()) return own_status;
    Report(status);
    return Status::OK;
  }

  void Poll() override {
    if (served_ != nullptr) {
      Report(Follow());
    } else if (Status status = Start(); !status.ok()) {
      Report(status);
    }
  }

 private:
  // Brings the model to the newest version. On an error it has the last one that was good.
  Status Follow() {
    std::vector<int64_t> there;
    if (Status status = target_.Versions(&there); !status.ok()) return status;
    newest_ = there.empty() ? -1 : there.back();
    if (newest_ == followed_ || newest_ < 0) return Status::OK;
    if (served_ != nullptr && followed_ >= 0 && newest_ > followed_) {
      const Status status = ApplyAfter(followed_);
      if (followed_ == newest_) return Status::OK;
      if (newest_ == refused_) return refusal_;
      Log(versions_.config().name, status.error_message());
    }
    if (newest_ == refused_) return refusal_;
    const Status status = LoadNewest();
    refused_ = status.ok() ? -1 : newest_;  // not tried again until there is a newer one
    refusal_ = status;
    return status;
  }

  // Applies the deltas behind `version`, one after the other.
  Status ApplyAfter(int64_t version) {
    for (int64_t next = version + 1; next <= newest_; ++next) {
      VersionRecord record;
      Status status = target_.Read(next, &record);
      if (!status.ok()) return status;
      if (record.parent != next - 1 || record.kind == VersionRecord::kRollback) {
        return Status(StatusCode::FAILED_PRECONDITION,
                      "version " + std::to_string(next) + " does not follow version " +
                          std::to_string(next - 1) + ": its base is loaded");
      }
      status = served_->model().Apply(target_.FolderOf(next));
      if (!status.ok() && status.error_code() != StatusCode::ALREADY_EXISTS) return status;
      followed_ = next;
    }
    return Status::OK;
  }

  // Loads the base of the newest version, and applies the deltas up to it.
  Status LoadNewest() {
    VersionRecord newest, content;
    Status status = target_.Read(newest_, &newest);
    if (!status.ok()) return status;
    status = target_.Read(newest.content, &content);
    if (!status.ok()) return status;
    std::vector<std::string> deltas;
    for (int64_t version = content.base + 1; version <= newest.content; ++version) {
      deltas.push_back(target_.FolderOf(version));
    }
    return Load(target_.BaseOf(content.base), content.base, deltas);
  }

  // The new model takes over if it has all deltas, or more than the old one.
  Status Load(const std::string& path, int64_t base, const std::vector<std::string>& deltas) {
    std::shared_ptr<ServedModel> loaded;
    versions_.SetLoading(base);
    Status status = loader_.Load(path, base, StateFile(), &loaded);
    Status applied;
    if (status.ok()) {
      for (const std::string& delta : deltas) {
        applied = loaded->model().Apply(delta);
        if (applied.error_code() == StatusCode::ALREADY_EXISTS) applied = Status::OK;
        if (!applied.ok()) break;
      }
      const bool older = served_ != nullptr && loaded->version() <= served_->version();
      if (!applied.ok() && older) status = applied;
    }
    if (status.ok()) status = warm_up_(*loaded);
    if (!status.ok()) {
      versions_.SetFailed(base, status);
      return status;
    }
    served_ = loaded;
    const bool is_of_target = newest_ >= 0 && path == target_.BaseOf(base);
    // Versions of the model's own path are not those of the target, though both may begin with 1.
    // But what a state file added to it came from the target.
    const bool is_followed = is_of_target || loaded->version() > base;
    followed_ = is_of_target && applied.ok() ? newest_ : is_followed ? loaded->version() : -1;
    versions_.Serve({loaded});
    Log(versions_.config().name,
        "version " + std::to_string(loaded->version()) + " is loaded from " + path);
    return applied;
  }

  std::string StateFile() const {
    const std::string& folder = loader_.options.state;
    return folder.empty() ? "" : folder + "/" + versions_.config().name + ".state";
  }

  void Report(const Status& followed) {
    SourceState state = versions_.source();
    double seen = Now();
    const Status source = target_.Source(&seen);
    const Status& status = source.ok() ? followed : source;
    state.up = status.error_code() != StatusCode::UNAVAILABLE;
    if (state.up) state.last_seen = seen;
    if (newest_ >= 0) state.newest_version = newest_;
    if (!status.ok() && status.error_message() != state.error) {
      Log(versions_.config().name, status.error_message());
    }
    if (!status.ok()) ++state.failures;
    state.error = status.error_message();
    versions_.SetSource(state);
  }

  ModelVersions& versions_;
  const ServedModel::Loader loader_;
  const WarmUp warm_up_;
  const TargetFolder target_;
  std::shared_ptr<ServedModel> served_;
  int64_t newest_ = -1;    // in the target
  int64_t followed_ = -1;  // the version of the target that `served_` has the content of
  int64_t refused_ = -1;   // the newest version when loading failed
  Status refusal_;
};

}  // namespace

std::unique_ptr<VersionSource> FollowTarget(ModelVersions& versions, ServedModel::Loader loader,
                                            WarmUp warm_up) {
  return std::make_unique<Target>(versions, loader, std::move(warm_up));
}

}  // namespace group_embedding::server
