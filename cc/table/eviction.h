// Decides which rows in host memory an eviction removes.
#pragma once

#include <type_traits>

#include "core/rows.h"
#include "table/embedding_table.h"

namespace group_embedding {

// Whether a key of such a version, such values, [dim], and such a minute goes; 0: it is not known.
inline bool IsToEvict(const TableOptions& options, const Eviction& eviction, int64_t step,
                      int64_t version, const char* values, uint32_t minute) {
  using Kind = Eviction::Kind;
  if (Has(eviction, Kind::kGlobalStep) && version >= 0 && step - version > eviction.steps_to_live) {
    return true;
  }
  if (Has(eviction, Kind::kTime) && minute != 0 &&
      eviction.minute - minute > eviction.minutes_to_live) {
    return true;
  }
  bool evict = false;
  if (Has(eviction, Kind::kL2Weight)) {
    ForDataType(options.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const T* x = reinterpret_cast<const T*>(values);
      evict = 0.5f * Dot(x, x, options.dim) < eviction.l2_weight;
    });
  }
  return evict;
}

}  // namespace group_embedding
