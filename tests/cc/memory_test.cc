// Memory of tables under a limit of address space.
#include "table/memory.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
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
    const int64_t left = PhysicalBytes();
    rlimit limit = {static_cast<rlim_t>(left), RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = left - FindMemoryLeft().bytes + more_bytes;
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

}  // namespace
}  // namespace group_embedding
