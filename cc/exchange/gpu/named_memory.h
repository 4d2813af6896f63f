// Memory by name: what a sharded lookup asks its caller for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace group_embedding {

struct NamedMemory {
  // Returns memory that is kept under `name`: a later call with the same name returns the same
  // memory, or larger memory.
  using Allocate = std::function<void*(const std::string& name, int64_t bytes)>;
  Allocate on_device;
  Allocate on_host;  // page-locked
};

}  // namespace group_embedding
