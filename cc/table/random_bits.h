// Random bits for file names that no other save uses.
#pragma once

#include <cstdint>
#include <random>

namespace group_embedding {

inline uint64_t RandomBits() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

}  // namespace group_embedding
