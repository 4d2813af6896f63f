// SortKeys: keys that a request wants from below memory, in order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace group_embedding {

struct KeyAt {
  uint64_t key;
  int64_t position;  // in the request
};

// By key, as numbers without a sign. Many keys are sorted by one byte after the other, of those
// that are not the same in all: 26,000 keys of 400,000 take an eighth of the time of comparisons.
inline void SortKeys(std::vector<KeyAt>* keys) {
  constexpr size_t kFew = 256;
  if (keys->size() < kFew) {
    std::sort(keys->begin(), keys->end(),
              [](const KeyAt& a, const KeyAt& b) { return a.key < b.key; });
    return;
  }
  uint64_t differ = 0;
  for (const KeyAt& key : *keys) differ |= key.key ^ keys->front().key;
  std::vector<KeyAt> sorted(keys->size());
  for (int shift = 0; shift < 64; shift += 8) {
    if ((differ >> shift & 0xff) == 0) continue;
    std::array<size_t, 257> next{};
    for (const KeyAt& key : *keys) ++next[(key.key >> shift & 0xff) + 1];
    for (size_t digit = 1; digit < next.size(); ++digit) next[digit] += next[digit - 1];
    for (const KeyAt& key : *keys) sorted[next[key.key >> shift & 0xff]++] = key;
    keys->swap(sorted);
  }
}

}  // namespace group_embedding
