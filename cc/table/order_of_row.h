// OrderOfRow: where a key is in the order of eviction, by its row in host memory.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/rows.h"
#include "table/table_options.h"

namespace group_embedding {

// score, born: the addresses of those slots of a row, in memory or in a record, or null.
class OrderOfRow {
 public:
  OrderOfRow(const TableOptions& options, int64_t step) : options_(options), step_(step) {}

  uint64_t Score(int64_t count, int64_t version, const char* values, const char* score) const {
    const Budget& budget = options_.budget;
    switch (budget.first) {
      case EvictFirst::kLeastRecent:
        break;
      case EvictFirst::kLeastFrequent:
        return static_cast<uint64_t>(count);
      case EvictFirst::kDecayedFrequency:
        return static_cast<uint64_t>(DecayedCount(count, version, step_, budget.decay_steps));
      case EvictFirst::kSmallestNorm:
        return NormOf(values);
      case EvictFirst::kEarliest: {
        uint32_t minute;
        std::memcpy(&minute, score, sizeof(minute));
        return minute;
      }
      case EvictFirst::kLowestScore: {
        float number;
        std::memcpy(&number, score, sizeof(number));
        return eviction_order::OfFloat(number);
      }
    }
    return eviction_order::OfInteger(version);
  }
  EvictionOrder Order(uint64_t score, int64_t version, int64_t key) const {
    return {score, eviction_order::OfInteger(version), MixBits(static_cast<uint64_t>(key))};
  }
  bool IsSafeNow(const char* born) const {
    uint32_t mark;
    std::memcpy(&mark, born, sizeof(mark));
    return IsSafe(mark, step_, options_.budget.safe_steps);
  }

 private:
  // In double the products are exact, so the sum is the same with and without fused multiply-add.
  uint64_t NormOf(const char* values) const {
    double sum = 0;
    ForDataType(options_.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const T* row = reinterpret_cast<const T*>(values);
      for (int32_t j = 0; j < options_.dim; ++j) {
        const double x = static_cast<double>(ToFloat(row[j]));
        sum += x * x;
      }
    });
    return eviction_order::OfSquares(sum);
  }

  const TableOptions& options_;
  const int64_t step_;
};

}  // namespace group_embedding
