// ZeroedMemory: a block of memory, zeroed at first, in large pages unless it is small.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "table/large_page_blocks.h"

namespace group_embedding {

class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  // `bytes`: a power of two. Throws std::bad_alloc.
  explicit ZeroedMemory(int64_t bytes) : bytes_(bytes) {
    if (bytes < LargePageBlocks::kLeastBytes) {
      data_ = std::calloc(bytes, 1);
    } else if (bytes < kLargePage) {
      data_ = std::memset(LargePageBlocks::Shared().Take(bytes), 0, bytes);
    } else {
      data_ = MapLargePages(bytes, PROT_READ | PROT_WRITE);
    }
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ZeroedMemory(ZeroedMemory&& other) noexcept { *this = std::move(other); }
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ZeroedMemory() {
    if (bytes_ < LargePageBlocks::kLeastBytes) {
      std::free(data_);
    } else if (bytes_ < kLargePage) {
      LargePageBlocks::Shared().Return(static_cast<char*>(data_), bytes_);
    } else {
      munmap(data_, bytes_);
    }
  }

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace group_embedding
