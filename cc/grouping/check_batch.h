// Checks of a batch, before its numbers are used as indices: an op's input may be any tensor, not
// only the output of GroupIds. CUDA threads read row splits through Batch::Begin, which bounds
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/fault.h"
#include "core/group.h"
#include "core/parallel.h"
#include "core/status.h"

namespace group_embedding {

// Where the samples and the ids of each feature begin in a batch: [num_features + 1] numbers each,
// the last of which is the total.
struct BatchExtents {
  std::vector<int64_t> first_samples = {0};
  std::vector<int64_t> first_ids = {0};

  int64_t num_features() const { return static_cast<int64_t>(first_samples.size()) - 1; }
  int64_t num_samples() const { return first_samples.back(); }
  int64_t num_ids() const { return first_ids.back(); }
  int64_t num_samples(int64_t feature) const {
    return first_samples[feature + 1] - first_samples[feature];
  }
  int64_t num_ids(int64_t feature) const { return first_ids[feature + 1] - first_ids[feature]; }
};

// Adds up `sizes` ([num_features, 2], the samples and ids of each feature) of a batch whose buffer
// has `num_floats`. Returns what is wrong with them; empty: nothing, and the buffer is as
// LayOutBatch says.
Status AddSizes(const int64_t* sizes, int64_t num_features, bool weighted, int64_t num_floats,
                BatchExtents* extents);

// A fault where the row splits of a feature do not begin and end with its ids.
Fault CheckFeatureSplits(const Batch& batch, const BatchExtents& extents);

// As CheckFeatureSplits, and a fault if row splits decrease. Without a fault, all are in [0,
// num_ids].
Fault CheckRowSplits(const Batch& batch, const BatchExtents& extents,
                     const ParallelFor& parallel_for);

}  // namespace group_embedding
