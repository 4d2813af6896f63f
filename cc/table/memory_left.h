// MemoryLeft: how much memory the system will still give this process.
#pragma once

#include <cstdint>
#include <string>

namespace group_embedding {

struct MemoryLeft {
  int64_t bytes;
  std::string limit;  // what sets it, and how to raise it, in words; empty: the host's memory
  bool is_of_group = false;  // it is of a control group, where pages count once they are written to

  // "100 bytes are left of the host's memory".
  std::string InWords() const;
};

// Whether the process's address space is limited (RLIMIT_AS).
bool AddressesAreLimited();

// The least of what the limits of address space and of control groups leave, in either version of
// control groups. The paths of the kernel's files begin with `root`.
MemoryLeft FindMemoryLeft(const std::string& root = "");

// Whether a table may write to so many bytes of new pages. The kernel ends a process that writes to
// more pages than its control group has, so there some stay for all else that the process does.
bool HasMemoryFor(int64_t bytes, const MemoryLeft& left = FindMemoryLeft());

}  // namespace group_embedding
