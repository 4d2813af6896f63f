// MemoryLeft: how much memory the system will still give this process.
#pragma once

#include <cstdint>
#include <string>

namespace group_embedding {

struct MemoryLeft {
  int64_t bytes;
  std::string limit;  // what sets it, and how to raise it, in words; empty: the host's memory

  // "100 bytes are left of the host's memory, of which tables leave 67108864 to others".
  std::string InWords() const;
};

// Whether the process's address space is limited (RLIMIT_AS).
bool AddressesAreLimited();

// What the host alone leaves. Page-locked memory counts in no limit of a process or control group.
MemoryLeft FindHostMemoryLeft(const std::string& root = "");

// The least of what the host, a limit of address space and control groups leave, in either version
// of these. The paths of the kernel's files begin with `root`.
MemoryLeft FindMemoryLeft(const std::string& root = "");

// Whether a table may take so many bytes more. Some stay for all else that the process does: where
// there are none, the kernel ends it, or libraries that cannot do without more do so.
bool HasMemoryFor(int64_t bytes, const MemoryLeft& left = FindMemoryLeft());

}  // namespace group_embedding
