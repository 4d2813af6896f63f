// Row splits that come from outside are checked before ids are read by them.
#pragma once

#include <cstdint>

#include "core/fault.h"

namespace group_embedding {

// Whether `split` may follow `before` in row splits that end at `end`, where before <= end.
inline bool MayFollow(int64_t split, int64_t before, int64_t end) {
  return static_cast<uint64_t>(split) - static_cast<uint64_t>(before) <=
         static_cast<uint64_t>(end - before);
}

// Whether row splits [begin, end] of a batch never fall: a loop without branches.
inline bool Ascend(const int64_t* splits, int64_t begin, int64_t end) {
  bool falls = false;
  for (int64_t s = begin; s < end; ++s) falls |= splits[s] > splits[s + 1];
  return !falls;
}

// The first of a feature's row splits ([num_samples + 1]) that is less than the one before it or
// more than the last one, as a fault. Its value counts from the feature's first id.
inline Fault WrongSplit(const int64_t* splits, int64_t num_samples, int64_t feature) {
  for (int64_t s = 1; s <= num_samples; ++s) {
    if (splits[s] >= splits[s - 1] && splits[s] <= splits[num_samples]) continue;
    const uint64_t value = static_cast<uint64_t>(splits[s]) - static_cast<uint64_t>(splits[0]);
    return {FaultKind::kRowSplitsInvalid, static_cast<int32_t>(feature), s,
            static_cast<int64_t>(value)};
  }
  return {FaultKind::kRowSplitsInvalid, static_cast<int32_t>(feature), 0, splits[0]};
}

}  // namespace group_embedding
