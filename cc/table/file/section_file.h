// A file of sections with checksums over every byte. group_embedding/checkpoint/README.md describes
// the format byte by byte.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/status.h"
#include "table/file/file_system.h"

namespace group_embedding {

// The version that is written, and the oldest one that is read.
inline constexpr uint32_t kFileVersion = 4, kOldestFileVersion = 1;
inline constexpr uint32_t kFooter = 0;  // the kind of the last section; its payload is empty

// What a finished file is known by.
struct FileSum {
  int64_t bytes = 0;
  uint32_t crc = 0;  // of all frames, without their own checksums: of the checksums of all payloads
  uint64_t id = 0;   // drawn when the file was written; 0: not known, in format version 1
};

// The file gets its name when it is complete; what was never finished is removed.
class SectionWriter {
 public:
  SectionWriter(std::string path, const FileSystem& files)
      : path_(std::move(path)), files_(files) {}

  Status Open();
  Status Write(uint32_t kind, const std::string& payload);
  // Writes the footer and finishes the file.
  Status Finish(FileSum* sum);

 private:
  Status Append(const void* data, size_t bytes);

  const std::string path_;
  const FileSystem& files_;
  std::unique_ptr<WritableFile> file_;
  uint32_t num_sections_ = 0;
  FileSum sum_;
};

class SectionReader {
 public:
  SectionReader(std::string path, const FileSource& files)
      : path_(std::move(path)), files_(files) {}

  const std::string& path() const { return path_; }
  // Opens the file, or begins again.
  Status Open();
  uint32_t version() const { return version_; }  // of the open file's format
  int64_t bytes() const { return file_bytes_; }  // of the open file
  // The next section, whose payload may have up to `max_bytes`: no memory is taken for a larger
  // one. The last one is of kind kFooter, and then `sum` is complete.
  Status Read(uint64_t max_bytes, uint32_t* kind, std::string* payload);
  const FileSum& sum() const { return sum_; }
  // A sentence: this file is damaged, in that way.
  std::string Damaged(const std::string& how) const;

 private:
  Status Take(void* to, uint64_t bytes, const char* what);

  const std::string path_;
  const FileSource& files_;
  std::unique_ptr<ReadableFile> file_;
  int64_t file_bytes_ = 0;
  uint32_t version_ = 0, num_sections_ = 0;
  FileSum sum_;
};

}  // namespace group_embedding
