#include "table/memory_left.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "table/memory.h"

namespace group_embedding {
namespace {

// What the control groups of a kernel call their files, and what its counters of a group and all
// below it begin with.
struct GroupFiles {
  const char* controllers;  // in /proc/self/cgroup, that of memory among them
  const char* folder;
  const char* most;
  const char* used;
  const char* counters;
};
constexpr GroupFiles kFirst = {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                               "memory.usage_in_bytes", "total_"};
constexpr GroupFiles kSecond = {"", "/sys/fs/cgroup", "memory.max", "memory.current", ""};

// What tables leave for all else that the process does.
constexpr int64_t kForOthers = int64_t{64} << 20;

// The number that a file begins with; -1: there is none, as where it says "max".
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number;
  return file >> number ? number : -1;
}

// Of the process; -1: any number.
int64_t MostAddresses() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

int64_t AddressesLeft() {
  const int64_t most = MostAddresses();
  if (most < 0) return -1;
  static const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t used = std::max<int64_t>(0, NumberIn("/proc/self/statm")) * page;
  return std::max<int64_t>(0, most - used);
}

// The bytes of cached pages of files, which count as used: the kernel reclaims them before it ends
// a process.
int64_t CachedBytes(const std::string& folder, const std::string& counters) {
  std::ifstream file(folder + "memory.stat");
  std::string word;
  int64_t cached = 0;
  for (int64_t value; file >> word >> value;) {
    if (word == counters + "inactive_file" || word == counters + "active_file") cached += value;
  }
  return cached;
}

// The path of the process's group, of lines like 4:cpu,memory:/path; nothing if there is none.
std::string PathOfGroup(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find(':') + 1, end = line.find(':', begin);
    if (begin == 0 || end == std::string::npos) continue;
    const std::string controllers = "," + line.substr(begin, end - begin) + ",";
    if (controllers.find("," + controller + ",") != std::string::npos) return line.substr(end + 1);
  }
  return "";
}

// The least of the process's group and all above it; -1: none has a limit. In a container the group
// lies where the root of all others does.
int64_t LeftOfGroups(const std::string& root, const GroupFiles& files) {
  std::string path = PathOfGroup(root, files.controllers);
  for (int64_t left = -1;;) {
    const std::string folder = root + files.folder + (path == "/" ? "" : path) + "/";
    const int64_t most = NumberIn(folder + files.most), used = NumberIn(folder + files.used);
    if (most >= 0 && used >= 0) {
      const int64_t here = std::max<int64_t>(0, most - used + CachedBytes(folder, files.counters));
      left = left < 0 ? here : std::min(left, here);
    }
    if (path.empty() || path == "/") return left;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

std::string MemoryLeft::InWords() const {
  return std::to_string(bytes) + " bytes are left " +
         (limit.empty() ? "of the host's memory" : limit) + ", of which tables leave " +
         std::to_string(kForOthers) + " to others";
}

bool AddressesAreLimited() { return MostAddresses() >= 0; }

// What the kernel can give without ending a process: free pages, those of files, and swap.
MemoryLeft FindHostMemoryLeft(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string word;
  int64_t kilobytes = 0, num_found = 0;
  for (int64_t value; num_found < 2 && file >> word;) {
    if ((word == "MemAvailable:" || word == "SwapFree:") && file >> value) {
      kilobytes += value;
      ++num_found;
    }
  }
  return {num_found > 0 ? kilobytes << 10 : PhysicalBytes(), ""};
}

MemoryLeft FindMemoryLeft(const std::string& root) {
  MemoryLeft left = FindHostMemoryLeft(root);
  const int64_t addresses = AddressesLeft();
  if (addresses >= 0 && addresses < left.bytes) {
    left = {addresses, "of the limit of address space (raise RLIMIT_AS, `ulimit -v`)"};
  }
  for (const GroupFiles& files : {kFirst, kSecond}) {
    const int64_t group = LeftOfGroups(root, files);
    if (group < 0 || group >= left.bytes) continue;
    left = {group, std::string("of the limit of the control group (raise its ") + files.most + ")"};
  }
  return left;
}

bool HasMemoryFor(int64_t bytes, const MemoryLeft& left) {
  return bytes <= left.bytes - kForOthers;
}

}  // namespace group_embedding
