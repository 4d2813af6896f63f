// Which ids of a sample count, and what their sum is divided by: one statement of the rules, for
// the host and the device, shared by the forward and the backward pass.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/group.h"
#include "core/host_device.h"

namespace group_embedding {

enum class IdUse : int32_t {
  kRow,    // reads its row
  kZeros,  // outside the table: reads zeros, but is one of the sample's ids
  kNone,   // pruned
};

// Whether an id of this weight is one of its sample's; NaN is not positive.
GROUP_EMBEDDING_HOST_DEVICE bool WeightCounts(Combiner combiner, float weight) {
  return weight > 0 || (combiner != Combiner::kMean && combiner != Combiner::kSqrtN);
}

GROUP_EMBEDDING_HOST_DEVICE bool IsMean(Combiner combiner) {
  return combiner == Combiner::kMean || combiner == Combiner::kSignedMean;
}

GROUP_EMBEDDING_HOST_DEVICE IdUse UseOfId(int64_t id, float weight, int64_t num_rows,
                                          Combiner combiner, bool prune_negative) {
  if (!WeightCounts(combiner, weight)) return IdUse::kNone;
  if (static_cast<uint64_t>(id) < static_cast<uint64_t>(num_rows)) return IdUse::kRow;
  return id < 0 && prune_negative ? IdUse::kNone : IdUse::kZeros;
}

// What the weighted sum of a sample's rows is multiplied by; 0 when there is nothing to divide by.
GROUP_EMBEDDING_HOST_DEVICE float CombinerScale(Combiner combiner, float sum_weights,
                                                float sum_squares) {
  if (combiner == Combiner::kSum) return 1.0f;
  if (IsMean(combiner)) return sum_weights == 0.0f ? 0.0f : 1.0f / sum_weights;
  return sum_squares == 0.0f ? 0.0f : 1.0f / sqrtf(sum_squares);
}

}  // namespace group_embedding
