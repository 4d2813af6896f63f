// MemoryFile: a file that is written to memory, as a FileSystem of this one file.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "table/file/file_system.h"

namespace group_embedding {

class MemoryFile : public FileSystem {
 public:
  // bytes: gets the content, and outlives this.
  explicit MemoryFile(std::string* bytes) : bytes_(bytes) {}

  Status Create(const std::string&, std::unique_ptr<WritableFile>* file) const override {
    *file = std::make_unique<Writer>(bytes_);
    return {};
  }
  Status Open(const std::string& path, std::unique_ptr<ReadableFile>*) const override {
    return "cannot open '" + path + "': it is being written";
  }
  bool Exists(const std::string&) const override { return false; }
  Status Share(const std::string& from, const std::string&) const override {
    return "cannot share '" + from + "': it is in memory";
  }

 private:
  class Writer : public WritableFile {
   public:
    explicit Writer(std::string* bytes) : bytes_(bytes) {}
    Status Append(const void* data, size_t bytes) override {
      bytes_->append(static_cast<const char*>(data), bytes);
      return {};
    }
    Status Finish() override { return {}; }

   private:
    std::string* const bytes_;
  };

  std::string* const bytes_;
};

}  // namespace group_embedding
