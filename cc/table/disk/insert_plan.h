// InsertPlan: divides given rows between memory and disk, when memory has no space for all new
// keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "table/disk/disk_store.h"
#include "table/embedding_table.h"

namespace group_embedding {

class InsertPlan {
 public:
  // Plans the insertion of rows [begin, end). If a key repeats, its last row is inserted.
  InsertPlan(const KeyedRows& rows, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) last_[rows.keys[i]] = i;
    for (const auto& [key, ignored] : last_) keys_.push_back(key);
    std::sort(keys_.begin(), keys_.end(), IsBeforeOnDisk);
  }

  // Each once, in the order of the disk.
  const std::vector<int64_t>& keys() const { return keys_; }
  int64_t num_keys() const { return static_cast<int64_t>(keys_.size()); }

  // in_memory: of each key its row there, or kNoRow; num_free: how many more there is space for.
  void Split(const std::vector<int64_t>& in_memory, int64_t num_free) {
    for (size_t k = 0; k < keys_.size(); ++k) {
      const bool is_new = in_memory[k] == kNoRow;
      (is_new && num_free == 0 ? below_ : above_).push_back(last_[keys_[k]]);
      if (is_new && num_free > 0) --num_free;
    }
  }

  // Indices of rows.
  const std::vector<size_t>& above() const { return above_; }
  const std::vector<size_t>& below() const { return below_; }
  std::vector<int64_t> KeysBelow(const KeyedRows& rows) const {
    std::vector<int64_t> keys;
    for (const size_t i : below_) keys.push_back(rows.keys[i]);
    return keys;
  }

 private:
  std::unordered_map<int64_t, size_t> last_;
  std::vector<int64_t> keys_;
  std::vector<size_t> above_, below_;
};

}  // namespace group_embedding
