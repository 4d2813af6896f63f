#include "table/memory_left.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "table/memory.h"

namespace group_embedding {
namespace {

constexpr char kGroups[] = "/sys/fs/cgroup";

// The number that a file begins with; -1: there is none, as where it says "max".
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number;
  return file >> number ? number : -1;
}

int64_t AddressesLeft() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  static const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t used = std::max<int64_t>(0, NumberIn("/proc/self/statm")) * page;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - used);
}

// The value of `name` in a control group's memory.stat.
int64_t StatOf(const std::string& folder, const std::string& name) {
  std::ifstream file(folder + "/memory.stat");
  std::string word;
  for (int64_t value; file >> word >> value;) {
    if (word == name) return value;
  }
  return 0;
}

// The least of the process's group and all above it; cached pages of files can be reclaimed.
int64_t GroupLeft() {
  std::ifstream file("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::", 0) == 0) path = line.substr(3);
  }
  int64_t left = -1;
  for (;;) {
    const std::string folder = kGroups + (path == "/" ? "" : path);
    const int64_t most = NumberIn(folder + "/memory.max");
    const int64_t used = NumberIn(folder + "/memory.current");
    if (most >= 0 && used >= 0) {
      const int64_t here = std::max<int64_t>(0, most - used + StatOf(folder, "inactive_file"));
      left = left < 0 ? here : std::min(left, here);
    }
    if (path.empty() || path == "/") return left;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

bool AddressesAreLimited() { return AddressesLeft() >= 0; }

MemoryLeft FindMemoryLeft() {
  MemoryLeft left = {PhysicalBytes(), ""};
  const int64_t addresses = AddressesLeft(), group = GroupLeft();
  if (addresses >= 0 && addresses < left.bytes) {
    left = {addresses, "of the limit of address space (raise RLIMIT_AS, `ulimit -v`)"};
  }
  if (group >= 0 && group < left.bytes) {
    left = {group, "of the limit of the control group (raise its memory.max)"};
  }
  return left;
}

}  // namespace group_embedding
