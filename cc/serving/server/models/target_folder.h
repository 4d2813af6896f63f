// A publisher's target in a folder: docs/reference/deltas.md has its layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serving/server/models/serving_library.h"

namespace group_embedding::server {

// What the record of a version says.
struct VersionRecord {
  enum Kind : uint32_t { kBase = 1, kDelta = 2, kRollback = 3 };
  uint32_t kind = 0;
  int64_t version = 0;
  int64_t parent = -1;  // -1: none
  int64_t base = 0;     // the version of the newest base
  uint64_t base_id = 0;
  int64_t content = 0;  // the version whose content this one has
};

class TargetFolder {
 public:
  // url: a folder, or file://FOLDER.
  explicit TargetFolder(const std::string& url);

  const std::string& path() const { return path_; }
  // The versions that have a record, rising. UNAVAILABLE: the folder cannot be read.
  Status Versions(std::vector<int64_t>* versions) const;
  // DATA_LOSS: the record is damaged. NOT_FOUND: it is gone.
  Status Read(int64_t version, VersionRecord* record) const;
  // Whether the folder's versions are all there is. A mirror that fills the folder tells it how its
  // source is: UNAVAILABLE: the source is away, or no mirror runs; DATA_LOSS: a version cannot be
  // used. `seen`: seconds since 1970 at which the mirror last told; unchanged without a mirror.
  Status Source(double* seen) const;
  std::string FolderOf(int64_t version) const;  // of its record and files
  std::string BaseOf(int64_t base) const;       // the SavedModel

 private:
  std::string path_;
};

}  // namespace group_embedding::server
