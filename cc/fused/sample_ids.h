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

// Each switch names every combiner and has no default: the compiler reports a new combiner that one
// of them leaves out.

// Whether an id of this weight is one of its sample's; NaN is not positive.
GROUP_EMBEDDING_HOST_DEVICE bool WeightCounts(Combiner combiner, float weight) {
  switch (combiner) {
    case Combiner::kMean:
    case Combiner::kSqrtN:
      return weight > 0;
    case Combiner::kSum:
    case Combiner::kSignedMean:
    case Combiner::kSignedSqrtN:
      break;
  }
  return true;
}

GROUP_EMBEDDING_HOST_DEVICE bool IsMean(Combiner combiner) {
  switch (combiner) {
    case Combiner::kMean:
    case Combiner::kSignedMean:
      return true;
    case Combiner::kSum:
    case Combiner::kSqrtN:
    case Combiner::kSignedSqrtN:
      break;
  }
  return false;
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
  switch (combiner) {
    case Combiner::kMean:
    case Combiner::kSignedMean:
      return sum_weights == 0.0f ? 0.0f : 1.0f / sum_weights;
    case Combiner::kSqrtN:
    case Combiner::kSignedSqrtN:
      return sum_squares == 0.0f ? 0.0f : 1.0f / sqrtf(sum_squares);
    case Combiner::kSum:
      break;
  }
  return 1.0f;
}

}  // namespace group_embedding
