// Memory in large pages, for data that is read at random: fewer reads wait for address translation,
// and new memory takes fewer steps to allocate.
#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace group_embedding {

constexpr int64_t kLargePage = int64_t{2} << 20;

constexpr int64_t RoundUpToLargePages(int64_t bytes) {
  return (bytes + kLargePage - 1) / kLargePage * kLargePage;
}

// `bytes` of addresses that begin with a large page, of zeros where they may be read; null: there
// are not so many. `bytes`: whole pages. Given back by munmap.
inline char* MapLargePages(int64_t bytes, int protection) {
  void* mapped = mmap(nullptr, bytes + kLargePage, protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  const int64_t before = -reinterpret_cast<intptr_t>(begin) & (kLargePage - 1);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kLargePage - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

// Allocates [data, data + bytes), whole large pages, now, so that the first write to them does not
// wait. Does nothing before Linux 5.14.
inline void TouchLargePages(char* data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  madvise(data, bytes, MADV_POPULATE_WRITE);
#endif
}

// Moves [data, data + bytes), memory of somebody else that has its content, into those large pages
// of which it fills half or more. Content and addresses stay, and other threads may use the memory
// meanwhile. Copies the memory once, and takes nearly no time where the pages are large already.
// Does nothing before Linux 6.1, or where the system has no large page left.
inline void MoveToLargePages(const void* data, int64_t bytes) {
#ifdef MADV_COLLAPSE
  constexpr int advice = MADV_COLLAPSE;
#else
  constexpr int advice = 25;  // the number of MADV_COLLAPSE, for headers older than the kernel
#endif
  const auto nearest = [](intptr_t address) {
    return (address + kLargePage / 2) & ~intptr_t{kLargePage - 1};
  };
  const intptr_t begin = nearest(reinterpret_cast<intptr_t>(data));
  const intptr_t end = nearest(reinterpret_cast<intptr_t>(data) + bytes);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace group_embedding
