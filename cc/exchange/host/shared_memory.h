// Memory that the processes of one host share: a file without a name in any folder. The kernel
// frees it once the last process that mapped it has ended, even if it was killed, and no mount such
// as /dev/shm limits it. Addresses are reserved at once; memory is allocated as pages are touched.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"

namespace group_embedding {

class SharedMemory {
 public:
  // The size of the reserved addresses: more than messages ever take, and small enough that a
  // process can map the memory of a thousand ranks.
  static constexpr int64_t kBytes = int64_t{1} << 36;

  // Makes zeroed memory. Null on an error; *error says which.
  static std::unique_ptr<SharedMemory> Make(Status* error);
  // Maps the memory that another process of this host made. That process must live until all have
  // mapped it.
  static std::unique_ptr<SharedMemory> Map(const std::string& address, Status* error);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // The argument of Map.
  const std::string& address() const { return address_; }
  // [kBytes]; the first kReserved bytes are this class's own.
  char* data() const { return data_; }
  static constexpr int64_t kReserved = 64;

  // Gives the memory of whole pages back to the system; they are zeros when they are next touched.
  void GiveBack(int64_t begin, int64_t bytes);

 private:
  SharedMemory() = default;
  Status MapFile();

  int file_ = -1;
  char* data_ = nullptr;
  std::string address_;
};

}  // namespace group_embedding
