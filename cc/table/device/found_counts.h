// FoundCounts: how many ids had a row in the two memories of a table.
#pragma once

namespace group_embedding {

struct FoundCounts {
  unsigned long long in_first, below;  // in device memory, and in host memory below it

  unsigned long long sum() const { return in_first + below; }
  FoundCounts& operator+=(const FoundCounts& more) {
    in_first += more.in_first;
    below += more.below;
    return *this;
  }
};

}  // namespace group_embedding
