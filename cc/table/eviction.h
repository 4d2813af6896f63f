// Decides which rows in host memory an eviction removes, and counts them by its policies.
#pragma once

#include <type_traits>

#include "core/rows.h"
#include "table/embedding_table.h"
#include "table/use_counts.h"

namespace group_embedding {

// By what a key of such a version, such values, [dim], and such a minute goes; 0: the minute is not
// known. kNone: it stays.
inline Eviction::Kind EvictedBy(const TableOptions& options, const Eviction& eviction, int64_t step,
                                int64_t version, const char* values, uint32_t minute) {
  using Kind = Eviction::Kind;
  if (Has(eviction, Kind::kGlobalStep) && version >= 0 && step - version > eviction.steps_to_live) {
    return Kind::kGlobalStep;
  }
  if (Has(eviction, Kind::kTime) && minute != 0 &&
      eviction.minute - minute > eviction.minutes_to_live) {
    return Kind::kTime;
  }
  bool evict = false;
  if (Has(eviction, Kind::kL2Weight)) {
    ForDataType(options.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const T* x = reinterpret_cast<const T*>(values);
      evict = 0.5f * Dot(x, x, options.dim) < eviction.l2_weight;
    });
  }
  return evict ? Kind::kL2Weight : Kind::kNone;
}

inline void Count(Eviction::Kind policy, ExpiredCounts* counts) {
  if (policy == Eviction::Kind::kGlobalStep) ++counts->by_steps;
  if (policy == Eviction::Kind::kTime) ++counts->by_minutes;
  if (policy == Eviction::Kind::kL2Weight) ++counts->by_norm;
}

}  // namespace group_embedding
