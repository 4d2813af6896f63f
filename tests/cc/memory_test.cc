// Memory of tables under a limit of address space.
#include "table/memory.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "table/memory_left.h"

namespace group_embedding {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

// Runs `body` in a process that may take so many bytes of addresses more; whether it returned true.
template <typename Body>
bool RunWithin(int64_t more_bytes, const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const int64_t most = pages * sysconf(_SC_PAGESIZE) + more_bytes;
    const rlimit limit = {static_cast<rlim_t>(most), RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(WhatALimitLeavesIsKnown) {
  CHECK_TRUE(RunWithin(100 * kMegabyte, [] {
    const MemoryLeft left = FindMemoryLeft();
    return AddressesAreLimited() && left.bytes > 90 * kMegabyte && left.bytes <= 100 * kMegabyte &&
           left.limit.find("RLIMIT_AS") != std::string::npos;
  }));
}

TEST(ArraysReserveNothingUnderALimit) {
  CHECK_TRUE(RunWithin(100 * kMegabyte, [] {
    std::vector<std::unique_ptr<Memory>> arrays;
    for (int i = 0; i < 8; ++i) arrays.push_back(ReserveHostMemory(int64_t{1} << 40));
    for (int64_t bytes = kMegabyte; bytes <= 10 * kMegabyte; bytes += kMegabyte) {
      for (auto& array : arrays) {
        char* const data = array->data();
        if (!array->Grow(bytes).ok() || array->data() != data) return false;
        std::memset(data + bytes - kMegabyte, 7, kMegabyte);
      }
    }
    return arrays[0]->data()[0] == 7 && FindMemoryLeft().bytes < 24 * kMegabyte;
  }));
}

TEST(AnArrayThatCannotGrowKeepsWhatItHas) {
  CHECK_TRUE(RunWithin(20 * kMegabyte, [] {
    const auto array = ReserveHostMemory(int64_t{1} << 40);
    if (!array->Grow(8 * kMegabyte).ok()) return false;
    std::memset(array->data(), 7, 8 * kMegabyte);
    const Status status = array->Grow(200 * kMegabyte);
    return !status.ok() && array->bytes() == 8 * kMegabyte && array->data()[kMegabyte] == 7 &&
           array->Grow(12 * kMegabyte).ok();
  }));
}

// A folder with the kernel's files about the groups of a process.
class FakeKernel {
 public:
  FakeKernel() : root_(mkdtemp(name_)) {}
  ~FakeKernel() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string& root() const { return root_; }

 private:
  char name_[18] = "/tmp/kernelXXXXXX";
  const std::string root_;
};

TEST(TheLeastOfAllGroupsOfTheFirstKindIsLeft) {
  // Given a group that has a limit, below one with a lower one, and cached files
  const FakeKernel kernel;
  kernel.Write("/proc/self/cgroup", "5:pids:/\n4:cpu,memory:/job/rank\n0::/\n");
  const std::string groups = "/sys/fs/cgroup/memory";
  kernel.Write(groups + "/job/rank/memory.limit_in_bytes", "9000000");
  kernel.Write(groups + "/job/rank/memory.usage_in_bytes", "1000000");
  kernel.Write(groups + "/job/memory.limit_in_bytes", "5000000");
  kernel.Write(groups + "/job/memory.usage_in_bytes", "3000000");
  kernel.Write(groups + "/job/memory.stat",
               "cache 7\ntotal_inactive_file 400000\ntotal_active_file 100000\n");
  kernel.Write(groups + "/memory.limit_in_bytes", "9223372036854771712");
  kernel.Write(groups + "/memory.usage_in_bytes", "4000000");

  // When memory is looked for
  const MemoryLeft left = FindMemoryLeft(kernel.root());

  // Then that is what the upper one leaves
  CHECK_EQ(left.bytes, 2500000);
  // And 64 MB of it are not for tables
  CHECK_EQ(HasMemoryFor(1, left), false);
  CHECK_EQ(HasMemoryFor(kMegabyte, {65 * kMegabyte, ""}), true);
  CHECK_EQ(HasMemoryFor(kMegabyte + 1, {65 * kMegabyte, ""}), false);
  CHECK_TRUE(left.limit.find("memory.limit_in_bytes") != std::string::npos);
}

TEST(TheLeastOfAllGroupsOfTheSecondKindIsLeft) {
  // Given a container, whose group lies where the root of others does, and one with no limit in it
  const FakeKernel kernel;
  kernel.Write("/proc/self/cgroup", "0::/job\n");
  kernel.Write("/sys/fs/cgroup/job/memory.max", "max\n");
  kernel.Write("/sys/fs/cgroup/job/memory.current", "1000000\n");
  kernel.Write("/sys/fs/cgroup/memory.max", "4000000\n");
  kernel.Write("/sys/fs/cgroup/memory.current", "1000000\n");
  kernel.Write("/sys/fs/cgroup/memory.stat", "file 9\ninactive_file 200000\nactive_file 300000\n");

  // When memory is looked for
  const MemoryLeft left = FindMemoryLeft(kernel.root());

  // Then that is what the container's limit leaves
  CHECK_EQ(left.bytes, 3500000);
  // And page-locked memory, which counts in no group, is left of the host's
  CHECK_EQ(FindHostMemoryLeft(kernel.root()).bytes, PhysicalBytes());
  CHECK_TRUE(left.limit.find("memory.max") != std::string::npos);
}

TEST(WithoutGroupsTheHostsMemoryIsLeft) {
  // Given a host whose kernel says what it can give, and one whose kernel does not
  const FakeKernel kernel, silent;
  kernel.Write("/proc/meminfo",
               "MemTotal:  9000 kB\nMemAvailable:  4000 kB\nSwapTotal: 9 kB\nSwapFree:  8 kB\n");

  // When memory is looked for
  const MemoryLeft left = FindMemoryLeft(kernel.root());

  // Then that is it, or all that the host has
  CHECK_EQ(left.bytes, 4008 << 10);
  CHECK_EQ(left.InWords(),
           "4104192 bytes are left of the host's memory, of which tables leave "
           "67108864 to others");
  CHECK_EQ(HasMemoryFor(1, left), false);
  CHECK_EQ(FindMemoryLeft(silent.root()).bytes, PhysicalBytes());
}

}  // namespace
}  // namespace group_embedding
