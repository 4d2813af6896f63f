// TableOptions: what a keyed table is made of: its rows, which keys get one, and which lose theirs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/host_device.h"
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
  // Less than 1: beside min_count, each time that a key is trained it is admitted by chance. The
  // chance is drawn from the key's hash and its count, so that it repeats.
  double probability = 1;
};

// Decides which keys an eviction removes: those that any of its kinds, which are bits, names.
struct Eviction {
  enum class Kind : int32_t { kNone = 0, kGlobalStep = 1, kL2Weight = 2, kTime = 4 };
  Kind kind = Kind::kNone;
  int64_t steps_to_live = 0;    // kGlobalStep: keys not trained for more steps than this
  float l2_weight = 0;          // kL2Weight: keys whose row has sum_j x_j^2 / 2 < l2_weight
  int64_t minutes_to_live = 0;  // kTime: keys not trained for more minutes than this
  int64_t minute = 0;           // kTime: of now; 0: the table sets it

  Eviction& Add(Kind more) {
    kind = static_cast<Kind>(static_cast<int32_t>(kind) | static_cast<int32_t>(more));
    return *this;
  }
};

GROUP_EMBEDDING_HOST_DEVICE bool Has(const Eviction& eviction, Eviction::Kind kind) {
  return (static_cast<int32_t>(eviction.kind) & static_cast<int32_t>(kind)) != 0;
}

// How often a key must be trained to get a row. Independent draws with probability p first succeed
// at a number of trials whose distribution is geometric, which one draw of the key's gives.
GROUP_EMBEDDING_HOST_DEVICE int64_t MinCountOf(const Admission& admission, int64_t key) {
  if (admission.probability >= 1) return admission.min_count;
  const uint64_t bits = MixBits(static_cast<uint64_t>(key) ^ 0x6a09e667f3bcc909ULL);
  const double u = (static_cast<double>(bits >> 12) + 0.5) / 4503599627370496.0;  // in (0, 1)
  const double trials = initial_values::Log(u) / initial_values::Log(1 - admission.probability);
  double most = 1e15;
  if (admission.kind == Admission::Kind::kBloom && admission.counter_bytes < 8) {
    most = static_cast<double>((int64_t{1} << 8 * admission.counter_bytes) - 2);
  }
  const int64_t least = 1 + static_cast<int64_t>(trials < most ? trials : most);
  return least > admission.min_count ? least : admission.min_count;
}

// Until when a table was trained.
struct TableTime {
  int64_t last_step = -1;  // the newest step; -1: none
  int64_t minute = 0;      // since 1970, as was said last; 0: the clock's
};

struct TableOptions {
  std::string name;  // for messages
  int32_t dim = 0;
  DataType dtype = DataType::kFloat32;
  DataType slot_dtype = DataType::kFloat32;  // of the slots of update rules: see SlotInTable
  KeyType key_type = KeyType::kInt64;
  InitialValues initial;
  float no_row_value = 0;  // the constant that a key without a row reads
  Admission admission;
  int64_t max_bytes = 0;    // of rows with their slots and infos; 0: no limit
  bool keeps_time = false;  // of each key, the minute in which it was trained last: in kTimeSlot
  Budget budget;

  // Tables that evict the earliest keys first need the minute, too.
  bool KeepsTime() const { return keeps_time || budget.first == EvictFirst::kEarliest; }
};

// The slot of a table that keeps the time: the bits of a uint32, minutes since 1970; 0: not known.
inline constexpr char kTimeSlot[] = "key/minute";

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

// A slot of a file as a table with those options has it: of the type of the table's slots if it is
// an update rule's, whatever optimizer wrote it. The table's own slots, and averages of rows with
// their steps (`use_ema`), keep their type.
inline SlotOptions SlotInTable(SlotOptions slot, const TableOptions& options) {
  const std::string& name = slot.name;
  const std::string last = name.substr(name.rfind('/') + 1);
  const bool is_own = name == kTimeSlot || name == kScoreSlot || name == kBornSlot;
  const bool is_average = last == "average" || last == "average_step";
  // float16 does not hold all that other types hold.
  if (!is_own && !is_average && options.slot_dtype != DataType::kFloat16) {
    slot.dtype = options.slot_dtype;
  }
  return slot;
}

// Bytes per row of those slots in `more` that are not among `slots`.
inline std::vector<SlotOptions> NewSlots(const std::vector<SlotOptions>& slots,
                                         const std::vector<SlotOptions>& more) {
  std::vector<SlotOptions> found;
  for (const SlotOptions& slot : more) {
    const bool is_new = std::none_of(slots.begin(), slots.end(),
                                     [&](const SlotOptions& s) { return s.name == slot.name; });
    if (is_new) found.push_back(slot);
  }
  return found;
}
inline int64_t BytesOfNewSlots(const std::vector<SlotOptions>& slots,
                               const std::vector<SlotOptions>& more) {
  int64_t bytes = 0;
  for (const SlotOptions& slot : NewSlots(slots, more)) bytes += slot.width * SizeOf(slot.dtype);
  return bytes;
}

}  // namespace group_embedding
