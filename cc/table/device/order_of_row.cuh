// DeviceOrderOfRow: where a row in GPU memory is in the order of eviction, as OrderOfRow on the
// host.
#pragma once

#include "table/device/locate_rows.cuh"
#include "table/device/make_places.h"

namespace group_embedding {

// kIsPlain: the order is by step or count, and no key is safe for some steps.
template <bool kIsPlain>
class DeviceOrderOfRow {
 public:
  // The numbers by which keys are compared, one after the other.
  static constexpr int kScore = 0, kVersion = 1, kHash = 2;

  __device__ DeviceOrderOfRow(const DeviceTableRef& table, const PlacesArgs& places,
                              const int64_t& step)
      : table_(table), p_(places), step_(step) {}

  // Whether the row's key came so few steps ago that it stays: Budget::safe_steps.
  __device__ bool IsSafeNow(int64_t row) const {
    return !kIsPlain && table_.born != nullptr &&
           IsSafe(__ldcg(&table_.born[row]), step_, p_.safe_steps);
  }

  __device__ uint64_t NumberOf(int64_t row, const RowInfo& info, int which) const {
    if (which == kScore) return ScoreOf(row, info);
    if (which == kVersion) return eviction_order::OfInteger(info.version);
    return IndexRef::HashOf(info.key);
  }

 private:
  // As OrderOfRow::Score on the host.
  __device__ uint64_t ScoreOf(int64_t row, const RowInfo& info) const {
    switch (kIsPlain ? EvictFirst::kLeastFrequent : p_.first) {
      case EvictFirst::kDecayedFrequency:
        return static_cast<uint64_t>(DecayedCount(info.count, info.version, step_, p_.decay_steps));
      case EvictFirst::kSmallestNorm:
        return eviction_order::OfSquares(SquaresOf(row));
      case EvictFirst::kLowestScore:
        return eviction_order::OfFloat(__ldcg(&table_.scores[row]));
      case EvictFirst::kEarliest:
        return __ldcg(&table_.minutes[row]);
      default:
        return static_cast<uint64_t>(info.count);
    }
  }

  __device__ double SquaresOf(int64_t row) const {
    const char* values = table_.Row(row);
    switch (table_.dtype) {
      case DataType::kFloat16:
        return SquaresIn(reinterpret_cast<const __half*>(values));
      case DataType::kBFloat16:
        return SquaresIn(reinterpret_cast<const __nv_bfloat16*>(values));
      default:
        return SquaresIn(reinterpret_cast<const float*>(values));
    }
  }
  // One after the other, so that the sum is the host's: the squares are exact in double.
  template <typename T>
  __device__ double SquaresIn(const T* values) const {
    double sum = 0;
    for (int32_t j = 0; j < table_.dim; ++j) {
      const double x = ToFloat(values[j]);
      sum += x * x;
    }
    return sum;
  }

  const DeviceTableRef& table_;
  const PlacesArgs& p_;
  const int64_t& step_;
};

}  // namespace group_embedding
