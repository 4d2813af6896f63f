// Which ids of a sample count, what their sum is divided by, and the gradients of their weights:
// one statement of the rules, for the host and the device, shared by the forward and the backward
// pass.
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

// The gradient of an id's weight w, with d the dot product of its row and the gradient g of its
// sample's output, and the sums over the sample's ids that count:
//   kSum                  d
//   kMean, kSignedMean    (d - sum w d / W) / W              W = sum w
//   kSqrtN, kSignedSqrtN  d / sqrt(Q) - w sum w d / Q^1.5    Q = sum w^2
// scale: CombinerScale of the sample. dot: d. sum_dots: sum w d.
GROUP_EMBEDDING_HOST_DEVICE float WeightGradient(Combiner combiner, float weight, float scale,
                                                 float dot, float sum_dots) {
  switch (combiner) {
    case Combiner::kMean:
    case Combiner::kSignedMean:
      return scale * (dot - scale * sum_dots);
    case Combiner::kSqrtN:
    case Combiner::kSignedSqrtN:
      return scale * (dot - weight * scale * scale * sum_dots);
    case Combiner::kSum:
      break;
  }
  return dot;
}

}  // namespace group_embedding
