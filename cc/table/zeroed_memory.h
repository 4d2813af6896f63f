// A block of memory that grows, with zeros.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace group_embedding {

class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  ZeroedMemory(ZeroedMemory&& other) noexcept { *this = std::move(other); }
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ZeroedMemory() {
    if (IsMapped(bytes_)) {
      munmap(data_, bytes_);
    } else {
      std::free(data_);
    }
  }

  void* data() const { return data_; }

  // To at least as many bytes as before. May move the block. Throws std::bad_alloc.
  void Resize(int64_t bytes) {
    if (!IsMapped(bytes)) {
      void* data = std::realloc(data_, bytes);
      if (data == nullptr) throw std::bad_alloc();
      std::memset(static_cast<char*>(data) + bytes_, 0, bytes - bytes_);
      data_ = data;
      bytes_ = bytes;
      return;
    }
    ZeroedMemory larger;
    larger.data_ = Map(bytes);
    larger.bytes_ = bytes;
    if (data_ != nullptr) std::memcpy(larger.data_, data_, bytes_);
    *this = std::move(larger);
  }

 private:
  static constexpr int64_t kLargePage = int64_t{2} << 20;
  static bool IsMapped(int64_t bytes) { return bytes >= kLargePage; }

  // Memory that begins with a large page: it is read at random (see memory.cc).
  static void* Map(int64_t bytes) {
    void* mapped = mmap(nullptr, bytes + kLargePage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    char* begin = static_cast<char*>(mapped);
    const int64_t before = -reinterpret_cast<intptr_t>(begin) & (kLargePage - 1);
    if (before > 0) munmap(begin, before);
    munmap(begin + before + bytes, kLargePage - before);
    madvise(begin + before, bytes, MADV_HUGEPAGE);
    return begin + before;
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace group_embedding
