// Memory that the processes of one host share: a file that never has a name in a folder, so that
// nothing is left of it once the last process that mapped it has ended, however it ended, and no
// mount such as /dev/shm limits it. It takes addresses at once, and memory as it is touched.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace group_embedding {

class SharedMemory {
 public:
  // Of addresses. More than ranks ever have under way, and space for a thousand ranks.
  static constexpr int64_t kBytes = int64_t{1} << 36;

  // New memory, zeros. Null: `error` says why.
  static std::unique_ptr<SharedMemory> Make(std::string* error);
  // What another process of this host made. It must live until all have mapped it.
  static std::unique_ptr<SharedMemory> Map(const std::string& address, std::string* error);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // By which Map finds it.
  const std::string& address() const { return address_; }
  // [kBytes]; the first kReserved are this class's own.
  char* data() const { return data_; }
  static constexpr int64_t kReserved = 64;

  // Gives the memory of whole pages back to the system; they are zeros when they are next touched.
  void GiveBack(int64_t begin, int64_t bytes);

 private:
  SharedMemory() = default;
  std::string MapFile();

  int file_ = -1;
  char* data_ = nullptr;
  std::string address_;
};

}  // namespace group_embedding
