// DiskFolder: the folder of a table's disk tier, locked while in use.
#pragma once

#include <sys/types.h>

#include <string>

#include "core/status.h"

namespace group_embedding {

// A folder of its own for the files of one table; removed with this object. A locked file in it
// says that it is in use. The lock goes with the process, however that ends, so the next process
// that makes a folder beside it removes what a killed process has left.
//
// In a forked process the object does nothing: the folder stays with the process that made it.
class DiskFolder {
 public:
  DiskFolder() = default;
  ~DiskFolder();
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;

  // Makes the folder in `parent`, which is made too where it is missing, or where temporary files
  // go if `parent` is empty.
  Status Make(const std::string& parent, const std::string& table);

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  // the locked file; -1: there is no folder
  pid_t owner_ = 0;
};

}  // namespace group_embedding
