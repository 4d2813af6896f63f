#include "exchange/host/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>

namespace group_embedding {
namespace {

constexpr int64_t kPageBytes = 4096;

std::string Because(const std::string& what) { return what + ": " + std::strerror(errno); }

// A secret of this memory: a process with the same number in another container does not know it.
uint64_t DrawSecret() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

std::unique_ptr<SharedMemory> SharedMemory::Make(Status* error) {
  std::unique_ptr<SharedMemory> memory(new SharedMemory);
  memory->file_ = memfd_create("group_embedding", MFD_CLOEXEC);
  if (memory->file_ < 0 || ftruncate(memory->file_, kBytes) != 0) {
    *error = Because("memory to share cannot be made");
    return nullptr;
  }
  *error = memory->MapFile();
  if (!error->ok()) return nullptr;
  const uint64_t secret = DrawSecret();
  std::memcpy(memory->data_, &secret, sizeof(secret));
  memory->address_ = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(memory->file_) +
                     " " + std::to_string(secret);
  return memory;
}

std::unique_ptr<SharedMemory> SharedMemory::Map(const std::string& address, Status* error) {
  std::unique_ptr<SharedMemory> memory(new SharedMemory);
  std::string path;
  uint64_t secret = 0, found;
  std::istringstream(address) >> path >> secret;
  memory->file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (memory->file_ < 0) {
    *error = Because(path);
    return nullptr;
  }
  if (lseek(memory->file_, 0, SEEK_END) != kBytes ||
      pread(memory->file_, &found, sizeof(found), 0) != sizeof(found) || found != secret) {
    *error = path + ": expected the memory of another rank, got another file";
    return nullptr;
  }
  *error = memory->MapFile();
  if (!error->ok()) return nullptr;
  memory->address_ = address;
  return memory;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, kBytes);
  if (file_ >= 0) close(file_);
}

Status SharedMemory::MapFile() {
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (data == MAP_FAILED) return Because("memory to share cannot be mapped");
  data_ = static_cast<char*>(data);
  return {};
}

void SharedMemory::GiveBack(int64_t begin, int64_t bytes) {
  const int64_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  const int64_t end = (begin + bytes) / kPageBytes * kPageBytes;
  if (first < end) madvise(data_ + first, end - first, MADV_REMOVE);
}

}  // namespace group_embedding
