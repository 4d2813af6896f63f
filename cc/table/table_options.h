// TableOptions: what a keyed table is made of: its rows, which keys get one, and which lose theirs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/group.h"
#include "table/budget.h"
#include "table/initial_values.h"
#include "table/key_type.h"

namespace group_embedding {

// Decides which keys get a row when they are trained: all, or those seen `min_count` times, counted
// exactly or by a counting Bloom filter. The step that gives a key its row trains the row but reads
// the constant of keys without a row, because a step's outputs depend on earlier steps only.
struct Admission {
  enum class Kind : int32_t { kAll = 0, kCounter = 1, kBloom = 2 };
  Kind kind = Kind::kAll;
  int64_t min_count = 0;
  int64_t num_counters = 0;   // of the Bloom filter
  int32_t num_hashes = 0;     // of the Bloom filter
  int32_t counter_bytes = 8;  // of the Bloom filter: 1, 2, 4 or 8; counters stop at their maximum
};

// Decides which keys an eviction removes.
struct Eviction {
  enum class Kind : int32_t { kNone = 0, kGlobalStep = 1, kL2Weight = 2 };
  Kind kind = Kind::kNone;
  int64_t steps_to_live = 0;  // kGlobalStep: keys not trained for more steps than this
  float l2_weight = 0;        // kL2Weight: keys whose row has sum_j x_j^2 / 2 < l2_weight
};

struct TableOptions {
  std::string name;  // for messages
  int32_t dim = 0;
  DataType dtype = DataType::kFloat32;
  KeyType key_type = KeyType::kInt64;
  InitialValues initial;
  float no_row_value = 0;  // the constant that a key without a row reads
  Admission admission;
  int64_t max_bytes = 0;  // of rows with their slots and infos; 0: no limit
  Budget budget;
};

inline bool HasFilter(const TableOptions& options) {
  return options.admission.kind != Admission::Kind::kAll;
}

// An array of an update rule's state: one number per column of each row, or one per row.
struct SlotOptions {
  std::string name;   // such as "adagrad/accumulator"
  int32_t width = 0;  // dim, or 1
  DataType dtype = DataType::kFloat32;
  float initial = 0;
};

// Bytes per row of those slots in `more` that are not among `slots`.
inline int64_t BytesOfNewSlots(const std::vector<SlotOptions>& slots,
                               const std::vector<SlotOptions>& more) {
  int64_t bytes = 0;
  for (const SlotOptions& slot : more) {
    const bool is_new = std::none_of(slots.begin(), slots.end(),
                                     [&](const SlotOptions& s) { return s.name == slot.name; });
    if (is_new) bytes += slot.width * SizeOf(slot.dtype);
  }
  return bytes;
}

}  // namespace group_embedding
