// KeyType: which numbers are keys of a table. Keys lie in 64 bits, those of uint64 bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/words.h"

namespace group_embedding {

// Numbers stay as they are: files have them.
enum class KeyType : int32_t { kUnknown = 0, kInt32 = 1, kInt64 = 2, kUint32 = 3, kUint64 = 4 };

inline const Words<KeyType>& KeyTypeWords() {
  static const Words<KeyType> words = {{"int32", KeyType::kInt32},
                                       {"int64", KeyType::kInt64},
                                       {"uint32", KeyType::kUint32},
                                       {"uint64", KeyType::kUint64}};
  return words;
}

inline std::string NameOf(KeyType type) {
  for (const auto& [word, known] : KeyTypeWords()) {
    if (known == type) return word;
  }
  return "unknown";
}

// Whether every key of `keys` is one of `table`.
inline bool Takes(KeyType table, KeyType keys) {
  switch (keys) {
    case KeyType::kInt32:
      return table == KeyType::kInt32 || table == KeyType::kInt64;
    case KeyType::kUint32:
      return table != KeyType::kInt32;
    default:
      return table == keys;
  }
}

// Whether the 64 bits of a key can be one of `table`.
inline bool Takes(KeyType table, int64_t key) {
  switch (table) {
    case KeyType::kInt32:
      return key == static_cast<int32_t>(key);
    case KeyType::kUint32:
      return key == static_cast<int64_t>(static_cast<uint32_t>(key));
    default:
      return true;
  }
}

// The least and the greatest of some keys, as int64.
struct KeyRange {
  int64_t least = 0, greatest = 0;
  bool is_empty = true;

  void Add(int64_t key) {
    least = is_empty ? key : std::min(least, key);
    greatest = is_empty ? key : std::max(greatest, key);
    is_empty = false;
  }
};

}  // namespace group_embedding
