// Memory: an array that grows without moving. Address space is reserved once, and memory is added
// to it as needed, so that rows are never copied and pointers stay valid.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"

namespace group_embedding {

// Grow() needs a lock; data() and bytes() may be read while it runs.
class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Makes the first `bytes` usable: earlier bytes keep address and content, new ones are zero.
  // OK if bytes() >= `bytes`.
  virtual Status Grow(int64_t bytes) = 0;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // usable

 protected:
  Memory() = default;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The memory that the host has.
int64_t PhysicalBytes();

// At most `max_bytes` of the host's memory, or as much as there are addresses for.
std::unique_ptr<Memory> ReserveHostMemory(int64_t max_bytes);

}  // namespace group_embedding
