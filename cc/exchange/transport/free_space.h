// A first-fit allocator of ranges of offsets. Adjacent free ranges are merged.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace group_embedding {

// All numbers are multiples of kAlignment. Not thread-safe.
class FreeSpace {
 public:
  static constexpr int64_t kAlignment = 64;

  FreeSpace(int64_t begin, int64_t end) : free_{{begin, end - begin}} {}

  // Takes a range of `bytes` and returns its beginning; -1: no free range is large enough.
  int64_t Take(int64_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const auto [begin, size] = *it;
      free_.erase(it);
      if (size > bytes) free_.emplace(begin + bytes, size - bytes);
      taken_.emplace(begin, bytes);
      return begin;
    }
    return -1;
  }

  // Frees the range that begins at `begin`, and returns its size.
  int64_t Give(int64_t begin) {
    const auto taken = taken_.find(begin);
    const int64_t bytes = taken->second;
    taken_.erase(taken);
    auto it = free_.emplace(begin, bytes).first;
    const auto next = std::next(it);
    if (next != free_.end() && begin + bytes == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it != free_.begin()) {
      const auto before = std::prev(it);
      if (before->first + before->second == begin) {
        before->second += it->second;
        free_.erase(it);
      }
    }
    return bytes;
  }

 private:
  std::map<int64_t, int64_t> free_, taken_;  // the beginning of each range -> its size
};

}  // namespace group_embedding
