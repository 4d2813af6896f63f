#include "tf/support/file_systems.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "tensorflow/core/platform/env.h"

namespace group_embedding {
namespace {

using ::tensorflow::Env;

Status InWords(const char* what, const std::string& path, const absl::Status& status) {
  if (status.ok()) return {};
  return std::string("cannot ") + what + " '" + path + "': " + std::string(status.message());
}

class Writer : public WritableFile {
 public:
  explicit Writer(std::string path) : path_(std::move(path)) {}
  ~Writer() override {
    if (file_ == nullptr || finished_) return;
    file_.reset();
    Env::Default()->DeleteFile(written_).IgnoreError();
  }

  // Under its name at once where a file shows only when it is closed, as in stores of objects.
  Status Create() {
    bool renames = false;
    if (!Env::Default()->HasAtomicMove(path_, &renames).ok()) renames = false;
    written_ = renames ? path_ + ".tmp" : path_;
    return InWords("create", written_, Env::Default()->NewWritableFile(written_, &file_));
  }

  Status Append(const void* data, size_t bytes) override {
    const absl::string_view piece(static_cast<const char*>(data), bytes);
    return InWords("write", written_, file_->Append(piece));
  }

  Status Finish() override {
    Status status = InWords("close", written_, file_->Close());
    if (status.ok() && written_ != path_) {
      status = InWords("rename", written_, Env::Default()->RenameFile(written_, path_));
    }
    finished_ = status.ok();
    return status;
  }

 private:
  const std::string path_;
  std::string written_;
  std::unique_ptr<tensorflow::WritableFile> file_;
  bool finished_ = false;
};

class Reader : public ReadableFile {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  Status Open() {
    uint64_t bytes = 0;
    Status status = InWords("open", path_, Env::Default()->GetFileSize(path_, &bytes));
    if (!status.ok()) return status;
    if (Env::Default()->IsDirectory(path_).ok()) {
      return "cannot open '" + path_ + "': expected a regular file";
    }
    bytes_ = static_cast<int64_t>(bytes);
    return InWords("open", path_, Env::Default()->NewRandomAccessFile(path_, &file_));
  }

  int64_t bytes() const override { return bytes_; }

  Status Read(int64_t offset, size_t bytes, char* to, size_t* taken) const override {
    absl::string_view read;
    const absl::Status status = file_->Read(static_cast<uint64_t>(offset), bytes, &read, to);
    if (!status.ok() && !absl::IsOutOfRange(status)) return InWords("read", path_, status);
    *taken = read.size();
    if (read.data() != to) std::memmove(to, read.data(), read.size());
    return {};
  }

 private:
  const std::string path_;
  std::unique_ptr<tensorflow::RandomAccessFile> file_;
  int64_t bytes_ = 0;
};

class TensorFlowFiles : public FileSystem {
 public:
  Status Open(const std::string& path, std::unique_ptr<ReadableFile>* file) const override {
    auto reader = std::make_unique<Reader>(path);
    Status status = reader->Open();
    if (status.ok()) *file = std::move(reader);
    return status;
  }

  Status Create(const std::string& path, std::unique_ptr<WritableFile>* file) const override {
    auto writer = std::make_unique<Writer>(path);
    Status status = writer->Create();
    if (status.ok()) *file = std::move(writer);
    return status;
  }

  bool Exists(const std::string& path) const override {
    return Env::Default()->FileExists(path).ok();
  }

  // TensorFlow's file systems have no second names. Names are drawn: a file of this one and of this
  // length is the same; a shorter one is what a copy left that did not end.
  Status Share(const std::string& from, const std::string& to) const override {
    if (from == to) return {};
    Env* env = Env::Default();
    uint64_t bytes = 0, copied = 0;
    Status status = InWords("copy", from, env->GetFileSize(from, &bytes));
    if (!status.ok()) return status;
    if (env->GetFileSize(to, &copied).ok()) {
      if (copied == bytes) return {};
      env->DeleteFile(to).IgnoreError();  // some file systems would append
    }
    return InWords("copy", from, env->CopyFile(from, to));
  }
};

}  // namespace

bool IsLocal(const std::string& path) { return path.find("://") == std::string::npos; }

const FileSystem& FileSystemOf(const std::string& path) {
  static const auto* files = new TensorFlowFiles();
  return IsLocal(path) ? LocalFiles() : *files;
}

}  // namespace group_embedding
