#include "serving/server/models/model_versions.h"

#include <algorithm>

namespace group_embedding::server {
namespace {

constexpr size_t kMostOthers = 100;  // states of old versions that are remembered

}  // namespace

Status ModelVersions::Find(const tensorflow::serving::ModelSpec& spec,
                           std::shared_ptr<ServedModel>* found) const {
  int64_t wanted = -1;
  if (spec.has_version()) wanted = spec.version().value();
  if (!spec.version_label().empty()) {
    const auto label = config_.labels.find(spec.version_label());
    if (label == config_.labels.end()) {
      return Status(StatusCode::NOT_FOUND, "model '" + config_.name + "' has no version label '" +
                                               spec.version_label() + "'");
    }
    wanted = label->second;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (served_.empty()) {
    return Status(StatusCode::UNAVAILABLE,
                  "model '" + config_.name + "' is " +
                      (source_.error.empty() ? "being loaded" : "not loaded: " + source_.error));
  }
  if (!spec.has_version() && spec.version_label().empty()) {
    *found = served_.back();
    return Status::OK;
  }
  std::string versions;
  for (const auto& served : served_) {
    const int64_t version = served->version();
    if (version == wanted) {
      *found = served;
      return Status::OK;
    }
    versions += (versions.empty() ? "" : ", ") + std::to_string(version);
  }
  return Status(StatusCode::NOT_FOUND, "version " + std::to_string(wanted) + " of model '" +
                                           config_.name + "' is not served; served is " + versions);
}

std::vector<std::shared_ptr<ServedModel>> ModelVersions::Served() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return served_;
}

void ModelVersions::Serve(std::vector<std::shared_ptr<ServedModel>> served) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& old : served_) {
    if (std::find(served.begin(), served.end(), old) != served.end()) continue;
    others_[old->version()] = {old->version(), VersionState::kUnloading, Status::OK};
    left_.push_back(old);
  }
  served_ = std::move(served);
  for (const auto& now : served_) others_.erase(now->version());
}

void ModelVersions::SetLoading(int64_t version) {
  std::lock_guard<std::mutex> lock(mutex_);
  others_[version] = {version, VersionState::kLoading, Status::OK};
}

void ModelVersions::SetFailed(int64_t version, const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  others_[version] = {version, VersionState::kEnd, status};
  while (others_.size() > kMostOthers) others_.erase(others_.begin());
}

std::vector<VersionState> ModelVersions::States(int64_t version) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<int64_t, VersionState> states = others_;
  for (const auto& served : served_) {
    const int64_t current = served->version();
    states[current] = {current, VersionState::kAvailable, Status::OK};
    // The code stays OK, as the version answers; the sentence says that it grows old.
    if (!source_.error.empty()) states[current].status = Status(StatusCode::OK, source_.error);
  }
  std::vector<VersionState> found;
  for (const auto& [number, state] : states) {
    if (version < 0 || version == number) found.push_back(state);
  }
  return found;
}

void ModelVersions::CloseUnused() {
  std::vector<std::shared_ptr<ServedModel>> unused;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto used = std::partition(left_.begin(), left_.end(),
                                   [](const auto& left) { return left.use_count() == 1; });
  for (auto left = left_.begin(); left != used; ++left) {
    const int64_t version = (*left)->version();
    const auto state = others_.find(version);
    if (state != others_.end()) state->second.state = VersionState::kEnd;
    unused.push_back(std::move(*left));
  }
  left_.erase(left_.begin(), used);
}

SourceState ModelVersions::source() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return source_;
}

void ModelVersions::SetSource(const SourceState& source) {
  std::lock_guard<std::mutex> lock(mutex_);
  source_ = source;
}

}  // namespace group_embedding::server
