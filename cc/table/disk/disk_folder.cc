#include "table/disk/disk_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace group_embedding {
namespace {

namespace fs = std::filesystem;

constexpr char kLock[] = "in_use";
constexpr char kKind[] = ".rows-";  // between a folder's name and six characters that are its own
constexpr size_t kOwnCharacters = 6;

// Names of tables may have slashes; those of different tables stay different.
std::string FileName(const std::string& table) {
  std::string name;
  for (const char c : table) {
    name += c == '/' ? std::string("%2F") : c == '%' ? std::string("%25") : std::string(1, c);
  }
  return name;
}

bool IsFolderOfTable(const std::string& name) {
  const size_t kind = name.rfind(kKind);
  return kind != std::string::npos && kind + std::strlen(kKind) + kOwnCharacters == name.size();
}

std::string LockOf(const std::string& folder) { return folder + "/" + kLock; }

// The locked file of a folder, or -1, and errno says why: ENOENT: the folder or the file is not
// there (any more); EWOULDBLOCK: somebody uses the folder. `flags`: O_CREAT, or 0.
int TakeLock(const std::string& folder, int flags) {
  const int file = open(LockOf(folder).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
  if (file < 0) return -1;
  struct stat found;
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(file);
    errno = EWOULDBLOCK;
    return -1;
  }
  if (fstat(file, &found) == 0 && found.st_nlink > 0) return file;
  close(file);  // it was removed before it was locked
  errno = ENOENT;
  return -1;
}

// The first line of a file of the system; empty: there is none.
std::string SystemLine(const char* file) {
  std::string line;
  std::ifstream from(file);
  std::getline(from, line);
  return line;
}

// This machine, by its name and by what it is called since it was started: containers of a machine
// have the second in common.
std::array<std::string, 2> ThisMachine() {
  return {SystemLine("/proc/sys/kernel/hostname"), SystemLine("/proc/sys/kernel/random/boot_id")};
}

// Says in a locked file which machine has locked it.
void WriteMachine(int file) {
  const auto [name, boot] = ThisMachine();
  const std::string lines = name + "\n" + boot + "\n";
  if (write(file, lines.data(), lines.size()) < 0) return;  // then nobody will remove the folder
}

// Whether this machine has locked a file: some file systems that machines share keep locks of each
// from the others.
bool IsOfThisMachine(const std::string& lock) {
  std::ifstream from(lock);
  for (const std::string& mine : ThisMachine()) {
    std::string line;
    if (std::getline(from, line) && !line.empty() && line == mine) return true;
  }
  return false;
}

// Removes a folder whose lock the caller has; the locked file last, so that a process which is
// killed meanwhile leaves what another one removes.
void RemoveLocked(const std::string& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename() != kLock) fs::remove_all(entry.path(), ignored);
  }
  fs::remove(LockOf(folder), ignored);
  fs::remove(folder, ignored);
}

// Removes the folders of this user's tables that processes of this machine have left.
void RemoveAbandoned(const fs::path& parent) {
  std::error_code failed;
  for (fs::directory_iterator entry(parent, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string folder = entry->path().string();
    struct stat found;
    if (!IsFolderOfTable(entry->path().filename().string())) continue;
    if (lstat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) continue;
    if (found.st_uid != geteuid()) continue;
    const int lock = TakeLock(folder, 0);
    if (lock >= 0) {
      if (IsOfThisMachine(LockOf(folder))) RemoveLocked(folder);
      close(lock);
    } else if (errno == ENOENT) {
      rmdir(folder.c_str());  // if it is empty: its process ended, or has yet to lock it
    }
  }
}

}  // namespace

Status DiskFolder::Make(const std::string& parent, const std::string& table) {
  std::error_code failed;
  const fs::path in = parent.empty() ? fs::temp_directory_path(failed) : fs::path(parent);
  const std::string name = parent.empty() ? "group_embedding" : FileName(table);
  path_ = (in / (name + kKind + std::string(kOwnCharacters, 'X'))).string();
  if (!failed) fs::create_directories(in, failed);
  if (failed) return failed.message();
  RemoveAbandoned(in);
  const std::string pattern = path_;
  while (lock_ < 0) {
    path_ = pattern;
    if (mkdtemp(path_.data()) == nullptr) return std::strerror(errno);
    lock_ = TakeLock(path_, O_CREAT);
    // Another process may take the folder for an abandoned one as long as it is not locked.
    if (lock_ < 0 && errno != ENOENT && errno != EWOULDBLOCK) return std::strerror(errno);
  }
  WriteMachine(lock_);
  owner_ = getpid();
  return {};
}

DiskFolder::~DiskFolder() {
  if (lock_ < 0) return;
  if (owner_ == getpid()) RemoveLocked(path_);
  close(lock_);
}

}  // namespace group_embedding
