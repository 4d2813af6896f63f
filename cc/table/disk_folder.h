// The folder of a table's files.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

namespace group_embedding {

// Where the files of one table go; removed in the end if it is temporary.
class DiskFolder {
 public:
  // In the folder `parent`, or a temporary one if that is empty. Returns what went wrong, in words.
  std::string Make(const std::string& parent, const std::string& table) {
    std::error_code failed;
    if (parent.empty()) {
      path_ = (std::filesystem::temp_directory_path(failed) / "group_embedding-XXXXXX").string();
      if (failed) return failed.message();
      is_temporary_ = mkdtemp(path_.data()) != nullptr;
      return is_temporary_ ? "" : std::strerror(errno);
    }
    path_ = (std::filesystem::path(parent) / FileName(table)).string();
    std::filesystem::create_directories(path_, failed);
    return failed ? failed.message() : "";
  }

  ~DiskFolder() {
    std::error_code ignored;
    if (is_temporary_) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

 private:
  // Names of tables may have slashes; those of different tables stay different.
  static std::string FileName(const std::string& table) {
    std::string name;
    for (const char c : table) {
      name += c == '/' ? std::string("%2F") : c == '%' ? std::string("%25") : std::string(1, c);
    }
    return name + ".rows";
  }

  std::string path_;
  bool is_temporary_ = false;
};

}  // namespace group_embedding
