// FileSystem: the operations of a file system that the files of tables need. local_files implements
// it with POSIX, tf/support/file_systems.h with TensorFlow's file systems.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"

namespace group_embedding {

// A file that is being written. It has its name once it is finished; one that never was is removed.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status Append(const void* data, size_t bytes) = 0;
  // Makes it last, as far as the file system can, and gives it its name.
  virtual Status Finish() = 0;
};

// A regular file that is being read.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t bytes() const = 0;
  // Up to `bytes` from byte `offset` on; `taken` says how many, 0 at the file's end.
  virtual Status Read(int64_t offset, size_t bytes, char* to, size_t* taken) const = 0;
};

// Files to read. Thread-safe.
class FileSource {
 public:
  virtual ~FileSource() = default;
  // Refuses what is not a regular file.
  virtual Status Open(const std::string& path, std::unique_ptr<ReadableFile>* file) const = 0;
};

// Thread-safe.
class FileSystem : public FileSource {
 public:
  // The folder exists. A file that has the name stays until the new one is finished.
  virtual Status Create(const std::string& path, std::unique_ptr<WritableFile>* file) const = 0;
  virtual bool Exists(const std::string& path) const = 0;
  // Makes `to` a second name of the file where there are such, else a copy. Writes over `to`.
  virtual Status Share(const std::string& from, const std::string& to) const = 0;
};

// The one of this machine. A file that is finished has survived a crash of the machine; while it is
// written, it is named `path`.tmp and has a lock (flock).
const FileSystem& LocalFiles();

}  // namespace group_embedding
