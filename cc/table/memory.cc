#include "table/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "table/large_pages.h"
#include "table/memory_left.h"

namespace group_embedding {
namespace {

int64_t RoundUp(int64_t bytes, int64_t unit) {
  return (std::max<int64_t>(bytes, 1) + unit - 1) / unit * unit;
}

// A small array takes no more than it needs; a larger one only whole large pages, as what was given
// in small ones stays so.
int64_t UsableBytes(int64_t bytes) {
  static const int64_t page = sysconf(_SC_PAGESIZE);
  return RoundUp(bytes, bytes < kLargePage ? page : kLargePage);
}

Status NoMore(int64_t bytes, int64_t more) {
  return "the system gave no " + std::to_string(more) + " bytes more after " +
         std::to_string(bytes) + ": " + std::strerror(errno);
}

// Reserves its addresses at once.
class ReservedMemory : public Memory {
 public:
  explicit ReservedMemory(int64_t max_bytes) {
    // Addresses run out (at 128 TB) long before memory does where many tables reserve all of it.
    for (reserved_ = RoundUp(max_bytes, kLargePage);;
         reserved_ = RoundUp(reserved_ / 2, kLargePage)) {
      data_ = MapLargePages(reserved_, PROT_NONE);
      if (data_ != nullptr) return;
      if (reserved_ == kLargePage) break;
    }
    reserved_ = 0;
  }

  ~ReservedMemory() override {
    if (data_ != nullptr) munmap(data_, reserved_);
  }

  Status Grow(int64_t bytes) override {
    if (bytes <= bytes_) return {};
    const int64_t usable = UsableBytes(bytes);
    if (usable > reserved_) {
      return "expected at most " + std::to_string(reserved_) +
             " bytes, as addresses were left, got " + std::to_string(bytes);
    }
    if (mprotect(data_ + bytes_, usable - bytes_, PROT_READ | PROT_WRITE) != 0) {
      return NoMore(bytes_, usable - bytes_);
    }
    bytes_ = usable;
    return {};
  }

 private:
  int64_t reserved_;
};

// Where address space is limited, reserved addresses count as memory. So this array reserves none:
// it lies in a part of the address space in which the kernel places nothing of itself, apart from
// others of its kind, and is mapped as it grows.
class UnreservedMemory : public Memory {
 public:
  explicit UnreservedMemory(int64_t max_bytes)
      : max_bytes_(RoundUp(max_bytes, kLargePage)), begin_(TakeAddresses(max_bytes_ + kLargePage)) {
    if (begin_ != nullptr) data_ = begin_;
  }

  ~UnreservedMemory() override {
    if (bytes_ > 0) munmap(data_, bytes_);
  }

  // Whether there were addresses for it.
  bool has_place() const { return begin_ != nullptr; }

  Status Grow(int64_t bytes) override {
    if (bytes <= bytes_) return {};
    const int64_t usable = UsableBytes(bytes);
    if (usable > max_bytes_) {
      return "expected at most " + std::to_string(max_bytes_) + " bytes, got " +
             std::to_string(bytes);
    }
    char* const at = data_ + bytes_;
    void* mapped = mmap(at, usable - bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped == MAP_FAILED) return NoMore(bytes_, usable - bytes_);
    if (mapped != at) {  // of a kernel that takes the address for a hint
      munmap(mapped, usable - bytes_);
      return "its addresses are taken after " + std::to_string(bytes_) + " bytes";
    }
    madvise(at, usable - bytes_, MADV_HUGEPAGE);
    bytes_ = usable;
    return {};
  }

 private:
  // Null: there are none left.
  static char* TakeAddresses(int64_t bytes) {
    constexpr int64_t kBegin = int64_t{0x20} << 40, kEnd = int64_t{0x50} << 40;
    static std::atomic<int64_t> next{kBegin};
    if (bytes > kEnd - kBegin) return nullptr;
    const int64_t begin = next.fetch_add(bytes);
    return begin + bytes <= kEnd ? reinterpret_cast<char*>(begin) : nullptr;
  }

  const int64_t max_bytes_;
  char* const begin_;
};

}  // namespace

int64_t PhysicalBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::unique_ptr<Memory> ReserveHostMemory(int64_t max_bytes) {
  if (AddressesAreLimited()) {
    auto memory = std::make_unique<UnreservedMemory>(max_bytes);
    if (memory->has_place()) return memory;
  }
  return std::make_unique<ReservedMemory>(max_bytes);
}

}  // namespace group_embedding
