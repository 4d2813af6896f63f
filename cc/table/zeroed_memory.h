// A block of memory that grows, with zeros.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "table/large_pages.h"

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
    larger.data_ = MapLargePages(bytes, PROT_READ | PROT_WRITE);
    if (larger.data_ == nullptr) throw std::bad_alloc();
    larger.bytes_ = bytes;
    if (data_ != nullptr) std::memcpy(larger.data_, data_, bytes_);
    *this = std::move(larger);
  }

 private:
  static bool IsMapped(int64_t bytes) { return bytes >= kLargePage; }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace group_embedding
