// ZeroedMemory: a block of memory, zeroed at first, in large pages unless it is small. It begins
// where a cache line does.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "table/large_page_blocks.h"
#include "table/no_memory.h"

namespace group_embedding {

class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  // At least `bytes`: the next power of two, or whole large pages. Throws NoMemory.
  explicit ZeroedMemory(int64_t bytes) {
    bytes_ = bytes < kLargePage ? kCacheLine : RoundUpToLargePages(bytes);
    while (bytes_ < bytes) bytes_ *= 2;
    if (bytes_ < LargePageBlocks::kLeastBytes) {
      data_ = std::aligned_alloc(kCacheLine, bytes_);
      if (data_ != nullptr) std::memset(data_, 0, bytes_);
    } else if (bytes_ < kLargePage) {
      data_ = std::memset(LargePageBlocks::Shared().Take(bytes_), 0, bytes_);
    } else {
      data_ = MapLargePages(bytes_, PROT_READ | PROT_WRITE);
    }
    if (data_ == nullptr) throw NoMemory(bytes);
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
  static constexpr int64_t kCacheLine = 64;

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace group_embedding
