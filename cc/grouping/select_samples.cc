#include "grouping/select_samples.h"

#include <algorithm>

namespace group_embedding {
namespace {

// Calls `body(sample in the batch)` for each selected one of a feature.
template <typename Body>
void ForSelected(const Feature& feature, const SampleSelection& selection, Body&& body) {
  for (int64_t i = 0; i < selection.num_samples; ++i) {
    body(feature.first_sample + (selection.samples == nullptr ? i : selection.samples[i]));
  }
}

}  // namespace

void CountSelectedIds(const Feature* features, const SampleSelection* selections,
                      int64_t num_features, const Batch& batch, int64_t* num_ids) {
  for (int64_t f = 0; f < num_features; ++f) {
    num_ids[f] = 0;
    ForSelected(features[f], selections[f], [&](int64_t sample) {
      num_ids[f] += batch.row_splits[sample + 1] - batch.row_splits[sample];
    });
  }
}

void SelectSamples(const Feature* features, const SampleSelection* selections, int64_t num_features,
                   const Batch& batch, const int64_t* num_ids, float* buffer) {
  int64_t total_samples = 0, total_ids = 0;
  for (int64_t f = 0; f < num_features; ++f) {
    total_samples += selections[f].num_samples;
    total_ids += num_ids[f];
  }
  const BatchLayout at = LayOutBatch(total_samples, total_ids, batch.weights != nullptr);
  auto* row_splits = reinterpret_cast<int64_t*>(buffer);
  auto* ids = reinterpret_cast<int64_t*>(buffer + at.ids);
  float* weights = buffer + at.weights;
  int64_t to_sample = 0, to_id = 0;
  row_splits[0] = 0;
  for (int64_t f = 0; f < num_features; ++f) {
    ForSelected(features[f], selections[f], [&](int64_t sample) {
      const int64_t begin = batch.row_splits[sample], end = batch.row_splits[sample + 1];
      std::copy(batch.ids + begin, batch.ids + end, ids + to_id);
      if (batch.weights != nullptr) {
        std::copy(batch.weights + begin, batch.weights + end, weights + to_id);
      }
      to_id += end - begin;
      row_splits[++to_sample] = to_id;
    });
  }
}

}  // namespace group_embedding
