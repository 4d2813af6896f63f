#include "table/file/unfinished_saves.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "table/file/file_system.h"

namespace group_embedding {
namespace {

constexpr size_t kSuffixBytes = sizeof("data-r0abc-of-12def") - 1;
constexpr char kTemporary[] = ".tmp";

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Removes a file of which nobody has the lock.
void RemoveIfNobodyWrites(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (file < 0) return;
  struct stat status;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && flock(file, LOCK_EX | LOCK_NB) == 0) {
    unlink(path.c_str());
  }
  close(file);
}

// What a folder has of tables, by the prefixes of checkpoints, without the folder.
struct Listing {
  std::map<std::string, std::vector<std::string>> files;  // that are finished
  std::vector<std::string> temporary;
  std::set<std::string> complete;  // prefixes with an index, or with a file of TensorFlow's
};

void Add(std::string name, Listing* found) {
  if (EndsWith(name, ".index")) found->complete.insert(name.substr(0, name.size() - 6));
  const bool is_temporary = EndsWith(name, kTemporary);
  const std::string whole = name;
  if (is_temporary) name.resize(name.size() - std::strlen(kTemporary));
  if (name.size() <= kSuffixBytes || name[name.size() - kSuffixBytes - 1] != '.') return;
  const std::string prefix = name.substr(0, name.size() - kSuffixBytes - 1);
  const std::string suffix = name.substr(prefix.size() + 1);
  if (!IsTableSuffix(suffix)) {
    if (suffix.rfind("data-", 0) == 0) found->complete.insert(prefix);
  } else if (is_temporary) {
    found->temporary.push_back(whole);
  } else {
    found->files[prefix].push_back(whole);
  }
}

Listing List(const std::string& folder) {
  Listing found;
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return found;
  while (const dirent* entry = readdir(entries)) Add(entry->d_name, &found);
  closedir(entries);
  return found;
}

// One folder that this process saves to.
struct Folder {
  int file = -1;                                           // which has the lock
  std::map<std::string, std::weak_ptr<const void>> holds;  // by prefix, without the folder
};

// Device and inode: a path may lead to another folder than before, where somebody removed the
// folder and made it again, or the process changed its working directory. While a folder's file is
// open, no other folder has its numbers.
using FolderId = std::pair<dev_t, ino_t>;

struct Folders {
  std::mutex mutex;
  std::map<FolderId, Folder> by_id;
};

Folders& AllFolders() {
  static auto* folders = new Folders();
  return *folders;
}

bool HasIndex(const std::string& prefix) { return LocalFiles().Exists(prefix + ".index"); }

// Removes what nobody holds. The folder's lock is ours alone.
void RemoveLeftovers(const std::string& path, const Folder& folder, const Listing& found) {
  for (const auto& [prefix, names] : found.files) {
    if (found.complete.count(prefix) > 0 || folder.holds.count(prefix) > 0) continue;
    if (HasIndex(path + prefix)) continue;  // it was completed after the folder was listed
    for (const std::string& name : names) unlink((path + name).c_str());
  }
}

// Before anything is held for the first time by this process. A lock that becomes another one is
// lost for a moment: so only where all that is held is complete.
void Sweep(const std::string& path, Folder* folder) {
  const Listing found = List(path);
  for (const std::string& name : found.temporary) RemoveIfNobodyWrites(path + name);
  for (const auto& hold : folder->holds) {
    if (!HasIndex(path + hold.first)) return;
  }
  if (folder->file < 0) folder->file = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder->file < 0) return;
  if (flock(folder->file, LOCK_EX | LOCK_NB) == 0) RemoveLeftovers(path, *folder, found);
  while (flock(folder->file, LOCK_SH) != 0 && errno == EINTR) continue;
}

void Release(const FolderId& id, const std::string& prefix) {
  Folders& all = AllFolders();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto folder = all.by_id.find(id);
  if (folder == all.by_id.end()) return;
  const auto hold = folder->second.holds.find(prefix);
  if (hold == folder->second.holds.end() || !hold->second.expired()) return;  // held anew meanwhile
  folder->second.holds.erase(hold);
  if (!folder->second.holds.empty()) return;
  if (folder->second.file >= 0) close(folder->second.file);
  all.by_id.erase(folder);
}

}  // namespace

bool IsTableSuffix(const std::string& suffix) {
  static const std::string kShape = "data-?****-of-*****";
  if (suffix.size() != kShape.size()) return false;
  for (size_t i = 0; i < kShape.size(); ++i) {
    const char c = suffix[i];
    const bool is_drawn = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    const bool is_kind = c == 'r' || c == 'c';
    const bool good = kShape[i] == '*' ? is_drawn : kShape[i] == '?' ? is_kind : c == kShape[i];
    if (!good) return false;
  }
  return true;
}

std::shared_ptr<const void> HoldSave(const std::string& prefix) {
  const size_t slash = prefix.rfind('/');
  const std::string path = slash == std::string::npos ? "./" : prefix.substr(0, slash + 1);
  const std::string name = slash == std::string::npos ? prefix : prefix.substr(slash + 1);
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return nullptr;
  const FolderId id(status.st_dev, status.st_ino);
  Folders& all = AllFolders();
  std::lock_guard<std::mutex> lock(all.mutex);
  Folder& folder = all.by_id[id];
  std::shared_ptr<const void> held;
  if (const auto found = folder.holds.find(name); found != folder.holds.end()) {
    held = found->second.lock();
    if (held != nullptr) return held;
    folder.holds.erase(found);
  }
  Sweep(path, &folder);
  held = std::shared_ptr<const void>(&folder, [id, name](const void*) { Release(id, name); });
  folder.holds[name] = held;
  return held;
}

}  // namespace group_embedding
