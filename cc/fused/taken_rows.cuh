// What the sinks of an update keep between a row's gradient and its update.
#pragma once

#include "fused/reduce_rows.cuh"

namespace group_embedding {

inline constexpr int kTakenRows = 4;

// The gradients that threads took, each for itself alone: a vector of each row, rounded to the type
// of the rows.
struct TakenRows {
  uint4 gradients[kTakenRows][kReduceThreads];
};

}  // namespace group_embedding
