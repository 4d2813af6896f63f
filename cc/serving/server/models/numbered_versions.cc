#include "serving/server/models/numbered_versions.h"

#include <filesystem>

namespace group_embedding::server {
namespace {

namespace fs = std::filesystem;

bool IsSavedModel(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "saved_model.pb", ignored);
}

Status ListVersions(const std::string& path, std::map<int64_t, std::string>* paths) {
  std::error_code error;
  fs::directory_iterator entries(path, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const int64_t version = AsVersion(entries->path().filename().string());
    // A folder without the file is one that is still being written.
    if (version >= 0 && IsSavedModel(entries->path())) (*paths)[version] = entries->path().string();
  }
  if (!error) return Status::OK;
  return Status(StatusCode::NOT_FOUND, "cannot read folder '" + path + "': " + error.message());
}

}  // namespace

int64_t AsVersion(const std::string& name) {
  if (name.empty() || name.find_first_not_of("0123456789") != std::string::npos) return -1;
  int64_t version = 0;
  for (const char digit : name) {
    if (__builtin_mul_overflow(version, 10, &version) ||
        __builtin_add_overflow(version, digit - '0', &version)) {
      return -1;
    }
  }
  return version;
}

Status VersionsToServe(const ModelToServe& model, std::map<int64_t, std::string>* paths) {
  if (IsSavedModel(model.path)) {
    fs::path path(model.path);
    if (!path.has_filename()) path = path.parent_path();
    (*paths)[std::max<int64_t>(0, AsVersion(path.filename().string()))] = model.path;
    return Status::OK;
  }
  std::map<int64_t, std::string> there;
  if (Status status = ListVersions(model.path, &there); !status.ok()) return status;
  const VersionPolicy& policy = model.policy;
  if (policy.all) {
    *paths = there;
  } else if (!policy.specific.empty()) {
    for (const int64_t version : policy.specific) {
      if (there.count(version)) (*paths)[version] = there[version];
    }
  } else {
    while (static_cast<int>(there.size()) > policy.latest) there.erase(there.begin());
    *paths = there;
  }
  if (!paths->empty()) return Status::OK;
  return Status(StatusCode::NOT_FOUND, "'" + model.path +
                                           "' is no SavedModel, and has no folder that is one and "
                                           "whose name is a version that is wanted");
}

}  // namespace group_embedding::server
