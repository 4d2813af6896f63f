// A block of memory that grows, with zeros; large ones without being copied.
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
    } else if (IsMapped(bytes_)) {
      data_ = Checked(mremap(data_, bytes_, bytes, MREMAP_MAYMOVE));
    } else {
      void* data = Checked(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
      madvise(data, bytes, MADV_HUGEPAGE);  // it is read at random: see memory.cc
      if (data_ != nullptr) std::memcpy(data, data_, bytes_);
      std::free(data_);
      data_ = data;
    }
    bytes_ = bytes;
  }

 private:
  static bool IsMapped(int64_t bytes) { return bytes >= (int64_t{2} << 20); }  // a large page
  static void* Checked(void* mapped) {
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    return mapped;
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace group_embedding
