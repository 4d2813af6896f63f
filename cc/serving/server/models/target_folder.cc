#include "serving/server/models/target_folder.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "serving/server/models/numbered_versions.h"
#include "serving/server/operations/log.h"
#include "table/file/section_file.h"

namespace group_embedding::server {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kVersionSection = 16;
constexpr uint64_t kMostSectionBytes = 1 << 20;
constexpr double kMirrorSeconds = 30;  // a mirror tells how its source is at least so often

// Reads numbers and strings off the front of a payload.
class Payload {
 public:
  explicit Payload(const std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  bool Read(T* value) {
    if (bytes_.size() - at_ < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }
  bool SkipString() {
    uint32_t size = 0;
    if (!Read(&size) || bytes_.size() - at_ < size) return false;
    at_ += size;
    return true;
  }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

}  // namespace

TargetFolder::TargetFolder(const std::string& url)
    : path_(url.rfind("file://", 0) == 0 ? url.substr(7) : url) {}

std::string TargetFolder::FolderOf(int64_t version) const {
  char name[32];
  std::snprintf(name, sizeof(name), "%020lld", static_cast<long long>(version));
  return path_ + "/versions/" + name;
}

std::string TargetFolder::BaseOf(int64_t base) const { return path_ + "/" + std::to_string(base); }

Status TargetFolder::Versions(std::vector<int64_t>* versions) const {
  std::error_code error;
  fs::directory_iterator entries(path_ + "/versions", error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const int64_t version = AsVersion(entries->path().filename().string());
    std::error_code ignored;
    if (version >= 0 && fs::exists(entries->path() / "COMMIT", ignored))
      versions->push_back(version);
  }
  std::sort(versions->begin(), versions->end());
  if (!error) return Status::OK;
  return Status(StatusCode::UNAVAILABLE,
                "cannot read folder '" + path_ + "/versions': " + error.message());
}

Status TargetFolder::Source(double* seen) const {
  std::ifstream file(path_ + "/SOURCE");
  double told = 0;
  std::string state, message;
  if (!(file >> told >> state)) return Status::OK;
  std::getline(file >> std::ws, message);
  const double age = Now() - told;
  if (age > kMirrorSeconds) {
    return Status(StatusCode::UNAVAILABLE, "the mirror of '" + path_ + "' has not told for " +
                                               std::to_string(static_cast<int64_t>(age)) +
                                               " s how its source is");
  }
  if (state != "up") return Status(StatusCode::UNAVAILABLE, message);
  *seen = told;
  return message.empty() ? Status::OK : Status(StatusCode::DATA_LOSS, message);
}

Status TargetFolder::Read(int64_t version, VersionRecord* record) const {
  const std::string path = FolderOf(version) + "/COMMIT";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Status(StatusCode::NOT_FOUND, "'" + path + "' is gone");
  SectionReader reader(path, LocalFiles());
  group_embedding::Status read = reader.Open();
  std::string bytes;
  uint32_t kind = 0;
  if (read.ok()) read = reader.Read(kMostSectionBytes, &kind, &bytes);
  if (!read.ok()) return Status(StatusCode::DATA_LOSS, read.message());
  Payload payload(bytes);
  uint64_t parent_base_id = 0;
  const bool right = kind == kVersionSection && payload.Read(&record->kind) &&
                     payload.SkipString() && payload.Read(&record->version) &&
                     payload.Read(&record->parent) && payload.Read(&parent_base_id) &&
                     payload.Read(&record->base) && payload.Read(&record->base_id) &&
                     payload.Read(&record->content);
  if (!right || record->version != version) {
    return Status(StatusCode::DATA_LOSS,
                  reader.Damaged("expected the record of version " + std::to_string(version)));
  }
  return Status::OK;
}

}  // namespace group_embedding::server
