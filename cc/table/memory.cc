#include "table/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace group_embedding {
namespace {

class HostMemory : public Memory {
 public:
  explicit HostMemory(int64_t max_bytes) {
    // Addresses run out (at 128 TB) long before memory does where many tables reserve all of it.
    constexpr int64_t kLeast = int64_t{1} << 20;
    for (reserved_ = RoundUp(max_bytes);; reserved_ = RoundUp(reserved_ / 2)) {
      void* at =
          mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at != MAP_FAILED) {
        // Rows are read at random: with large pages few reads wait for an address as well.
        madvise(at, reserved_, MADV_HUGEPAGE);
        data_ = static_cast<char*>(at);
        return;
      }
      if (reserved_ < kLeast) break;
    }
    reserved_ = 0;
  }

  ~HostMemory() override {
    if (data_ != nullptr) munmap(data_, reserved_);
  }

  std::string Grow(int64_t bytes) override {
    if (bytes <= bytes_) return "";
    if (bytes > reserved_) {
      return "expected at most " + std::to_string(reserved_) + " bytes, as were reserved, got " +
             std::to_string(bytes);
    }
    const int64_t usable = RoundUp(bytes);
    if (mprotect(data_ + bytes_, usable - bytes_, PROT_READ | PROT_WRITE) != 0) {
      return "the system gave no more memory after " + std::to_string(bytes_) +
             " bytes: " + std::strerror(errno);
    }
    bytes_ = usable;
    return "";
  }

 private:
  static int64_t RoundUp(int64_t bytes) {
    static const int64_t page = sysconf(_SC_PAGESIZE);
    return (bytes < 1 ? page : (bytes + page - 1) / page * page);
  }

  int64_t reserved_;
};

}  // namespace

std::unique_ptr<Memory> ReserveHostMemory(int64_t max_bytes) {
  return std::make_unique<HostMemory>(max_bytes);
}

}  // namespace group_embedding
