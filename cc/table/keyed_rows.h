// KeyedRows: keys and their rows in host memory, as they are saved, restored, inserted and
// exported.
#pragma once

#include <cstdint>
#include <vector>

namespace group_embedding {

// The data of a row beside its values and slots.
struct RowInfo {
  int64_t key;
  int64_t count;    // how often the key was trained; negative: the row belongs to no key
  int64_t version;  // the step at which it was trained last; -1: no step was given
  int64_t clock;    // the number of the batch in which it was trained last
};

inline constexpr int64_t kNoRow = -1;

// The maximum of a count, so that additions cannot overflow.
inline constexpr int64_t kMaxCount = int64_t{1} << 62;

inline constexpr int32_t kNoTier = -1;

struct KeyInfo {
  int32_t tier;  // 0: the row is in rows(); 1: in the tier below, and so on
  int64_t count, version;
};

// Keys and their rows in host memory, as saved, restored, inserted and exported.
struct KeyedRows {
  std::vector<int64_t> keys, counts, versions;
  std::vector<char> values;              // [keys, dim] of the table's type
  std::vector<std::vector<char>> slots;  // per slot of the table, [keys, width]
};

// A view of KeyedRows in the caller's memory. Null pointers: not given.
struct KeyedRowsView {
  int64_t num_keys = 0;
  const int64_t *keys = nullptr, *counts = nullptr, *versions = nullptr;  // [num_keys]
  const char* values = nullptr;                                           // [num_keys, dim]
  std::vector<const char*> slots;  // per slot of the table, [num_keys, width]; may be fewer
  bool has_places = false;  // for all keys, in the table's budget: it need not count them again

  KeyedRowsView() = default;
  KeyedRowsView(const KeyedRows& rows)  // NOLINT: implicit, as for a string_view
      : num_keys(static_cast<int64_t>(rows.keys.size())),
        keys(rows.keys.data()),
        counts(rows.counts.empty() ? nullptr : rows.counts.data()),
        versions(rows.versions.empty() ? nullptr : rows.versions.data()),
        values(rows.values.data()) {
    for (const auto& slot : rows.slots) slots.push_back(slot.empty() ? nullptr : slot.data());
  }
};

// The counts of keys that a table has not admitted.
struct AdmissionState {
  std::vector<int64_t> keys, counts;  // Admission::kCounter
  std::vector<char> counters;         // Admission::kBloom
};

}  // namespace group_embedding
