#include "table/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "table/large_pages.h"

namespace group_embedding {
namespace {

class HostMemory : public Memory {
 public:
  explicit HostMemory(int64_t max_bytes) {
    // Addresses run out (at 128 TB) long before memory does where many tables reserve all of it.
    for (reserved_ = RoundUp(max_bytes, kLargePage);;
         reserved_ = RoundUp(reserved_ / 2, kLargePage)) {
      data_ = MapLargePages(reserved_, PROT_NONE);
      if (data_ != nullptr) return;
      if (reserved_ == kLargePage) break;
    }
    reserved_ = 0;
  }

  ~HostMemory() override {
    if (data_ != nullptr) munmap(data_, reserved_);
  }

  Status Grow(int64_t bytes) override {
    if (bytes <= bytes_) return {};
    if (bytes > reserved_) {
      return "expected at most " + std::to_string(reserved_) + " bytes, as were reserved, got " +
             std::to_string(bytes);
    }
    // A small table takes no more than it needs; a larger one only whole large pages, as what was
    // given in small ones stays so.
    static const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t usable = RoundUp(bytes, bytes < kLargePage ? page : kLargePage);
    if (mprotect(data_ + bytes_, usable - bytes_, PROT_READ | PROT_WRITE) != 0) {
      return "the system gave no more memory after " + std::to_string(bytes_) +
             " bytes: " + std::strerror(errno);
    }
    bytes_ = usable;
    return {};
  }

 private:
  static int64_t RoundUp(int64_t bytes, int64_t unit) {
    return (std::max<int64_t>(bytes, 1) + unit - 1) / unit * unit;
  }

  int64_t reserved_;
};

}  // namespace

int64_t PhysicalBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::unique_ptr<Memory> ReserveHostMemory(int64_t max_bytes) {
  return std::make_unique<HostMemory>(max_bytes);
}

}  // namespace group_embedding
