#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>

#include "serving/server/models/follower.h"
#include "serving/server/models/numbered_versions.h"
#include "serving/server/operations/log.h"

namespace group_embedding::server {
namespace {

namespace fs = std::filesystem;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPause(500), kLongestPause(60'000);

// The names, sizes and times of the files below a folder.
std::string DescribeFiles(const std::string& path) {
  std::vector<std::string> lines;
  std::error_code error;
  fs::recursive_directory_iterator entries(path, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    std::error_code gone;
    const bool is_file = entries->is_regular_file(gone);
    const uintmax_t bytes = is_file ? entries->file_size(gone) : 0;
    const auto time = entries->last_write_time(gone).time_since_epoch().count();
    lines.push_back(entries->path().string() + " " + std::to_string(bytes) + " " +
                    std::to_string(time));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// A version that could not be loaded.
struct Failure {
  Status status;
  std::string files;  // as they were
  Clock::time_point next_try;
  std::chrono::milliseconds pause = kFirstPause;
};

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
  // Loads what is new, then serves what is wanted. A version that failed is tried again once its
  // files have changed: they may be copied one by one.
  Status Take(const std::map<int64_t, std::string>& wanted) {
    Status first_error;
    bool changed = false;
    for (const auto& [version, path] : wanted) {
      if (loaded_.count(version)) continue;
      Failure& failure = failures_[version];
      const std::string files = DescribeFiles(path);
      if (failure.status.error_code() != StatusCode::OK &&
          (files == failure.files || Clock::now() < failure.next_try)) {
        first_error = failure.status;
        continue;
      }
      std::shared_ptr<ServedModel> served;
      versions_.SetLoading(version);
      Status status = loader_.Load(path, version, "", &served);
      if (status.ok()) status = warm_up_(*served);
      if (status.ok()) {
        loaded_[version] = served;
        failures_.erase(version);
        changed = true;
        Log(versions_.config().name,
            "version " + std::to_string(version) + " is loaded from " + path);
      } else {
        versions_.SetFailed(version, status);
        first_error = failure.status = status;
        failure.files = files;
        failure.next_try = Clock::now() + failure.pause;
        failure.pause = std::min(2 * failure.pause, kLongestPause);
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
  std::map<int64_t, Failure> failures_;
};

}  // namespace

std::unique_ptr<VersionSource> FollowFolder(ModelVersions& versions, ServedModel::Loader loader,
                                            WarmUp warm_up) {
  return std::make_unique<Folder>(versions, loader, std::move(warm_up));
}

}  // namespace group_embedding::server
