#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "table/file/file_system.h"

namespace group_embedding {
namespace {

std::string Failed(const char* what, const std::string& path) {
  return std::string("cannot ") + what + " '" + path + "': " + std::strerror(errno);
}

// So that a crash of the machine leaves the new name, not only the content.
void SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

class LocalWriter : public WritableFile {
 public:
  explicit LocalWriter(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {}
  LocalWriter(const LocalWriter&) = delete;
  LocalWriter& operator=(const LocalWriter&) = delete;
  ~LocalWriter() override {
    if (file_ < 0) return;
    if (!finished_) unlink(temporary_.c_str());
    close(file_);
  }

  // The lock tells other processes that the file is being written, not left behind. Whoever removes
  // one that was left has its lock, so once we have it the name may be of another file, or none.
  Status Create() {
    while (true) {
      file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
      if (file_ < 0) return Failed("create", temporary_);
      while (flock(file_, LOCK_EX) != 0 && errno == EINTR) continue;
      struct stat own, named;
      if (fstat(file_, &own) != 0) return Failed("create", temporary_);
      if (!S_ISREG(own.st_mode)) {
        finished_ = true;  // not ours to remove
        return "cannot create '" + temporary_ + "': expected a regular file, or none";
      }
      if (stat(temporary_.c_str(), &named) == 0 && named.st_ino == own.st_ino &&
          named.st_dev == own.st_dev) {
        return ftruncate(file_, 0) == 0 ? Status() : Failed("create", temporary_);
      }
      close(file_);
    }
  }

  Status Append(const void* data, size_t bytes) override {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = write(file_, from, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failed("write", temporary_);
      from += written;
      bytes -= static_cast<size_t>(written);
    }
    return {};
  }

  Status Finish() override {
    if (fsync(file_) != 0) return Failed("sync", temporary_);
    if (rename(temporary_.c_str(), path_.c_str()) != 0) return Failed("rename", temporary_);
    finished_ = true;
    SyncFolderOf(path_);
    return {};
  }

 private:
  const std::string path_, temporary_;
  int file_ = -1;
  bool finished_ = false;
};

class LocalReader : public ReadableFile {
 public:
  explicit LocalReader(std::string path) : path_(std::move(path)) {}
  LocalReader(const LocalReader&) = delete;
  LocalReader& operator=(const LocalReader&) = delete;
  ~LocalReader() override {
    if (file_ >= 0) close(file_);
  }

  Status Open() {
    // Without O_NONBLOCK, opening a FIFO would wait for a writer.
    file_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat status;
    if (file_ < 0 || fstat(file_, &status) != 0) return Failed("open", path_);
    if (!S_ISREG(status.st_mode)) return "cannot open '" + path_ + "': expected a regular file";
    bytes_ = status.st_size;
    return {};
  }

  int64_t bytes() const override { return bytes_; }

  Status Read(int64_t offset, size_t bytes, char* to, size_t* taken) const override {
    ssize_t got;
    do {
      got = pread(file_, to, bytes, offset);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return Failed("read", path_);
    *taken = static_cast<size_t>(got);
    return {};
  }

 private:
  const std::string path_;
  int file_ = -1;
  int64_t bytes_ = 0;
};

class LocalFileSystem : public FileSystem {
 public:
  Status Open(const std::string& path, std::unique_ptr<ReadableFile>* file) const override {
    auto reader = std::make_unique<LocalReader>(path);
    Status status = reader->Open();
    if (status.ok()) *file = std::move(reader);
    return status;
  }

  Status Create(const std::string& path, std::unique_ptr<WritableFile>* file) const override {
    auto writer = std::make_unique<LocalWriter>(path);
    Status status = writer->Create();
    if (status.ok()) *file = std::move(writer);
    return status;
  }

  bool Exists(const std::string& path) const override { return access(path.c_str(), R_OK) == 0; }

  Status Share(const std::string& from, const std::string& to) const override {
    if (from == to || link(from.c_str(), to.c_str()) == 0) return {};
    if (errno == EEXIST) {
      unlink(to.c_str());
      if (link(from.c_str(), to.c_str()) == 0) return {};
    }
    return Copy(from, to);
  }

 private:
  Status Copy(const std::string& from, const std::string& to) const {
    std::unique_ptr<ReadableFile> in;
    std::unique_ptr<WritableFile> out;
    Status status = Open(from, &in);
    if (status.ok()) status = Create(to, &out);
    std::vector<char> buffer(1 << 20);
    size_t taken = 1;
    for (int64_t at = 0; status.ok() && taken > 0; at += static_cast<int64_t>(taken)) {
      status = in->Read(at, buffer.size(), buffer.data(), &taken);
      if (status.ok()) status = out->Append(buffer.data(), taken);
    }
    return status.ok() ? out->Finish() : status;
  }
};

}  // namespace

const FileSystem& LocalFiles() {
  static const auto* files = new LocalFileSystem();
  return *files;
}

}  // namespace group_embedding
