// Selects samples of a batch, such as those whose output has a gradient, into a batch of their own.
#pragma once

#include <cstdint>

#include "core/group.h"
#include "core/parallel.h"
#include "grouping/group_ids.h"

namespace group_embedding {

// Samples of one feature: `samples` [num_samples], by their number in it. Null: all of them.
struct SampleSelection {
  const int64_t* samples;
  int64_t num_samples;
};

// The ids of each feature's selected samples: num_ids [num_features].
void CountSelectedIds(const Feature* features, const SampleSelection* selections,
                      int64_t num_features, const Batch& batch, int64_t* num_ids);

// Writes the batch of those samples to `buffer`, [LayOutBatch(...).size] for as many samples and
// ids, with a part for weights if `batch` has one.
void SelectSamples(const Feature* features, const SampleSelection* selections, int64_t num_features,
                   const Batch& batch, const int64_t* num_ids, float* buffer);

}  // namespace group_embedding
