#include "fused/check_ids.h"

#include <vector>

#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

// Nanoseconds to check a feature of a usual batch.
constexpr int64_t kFeatureNanoseconds = 2000;

// Whether no id is outside the table, whatever its weight.
bool AllAreRows(const int64_t* ids, int64_t count, int64_t num_rows) {
  bool all = true;
  for (int64_t i = 0; i < count; ++i) {
    all &= static_cast<uint64_t>(ids[i]) < static_cast<uint64_t>(num_rows);
  }
  return all;
}

Fault CheckFeature(const Batch& batch, const Feature& feature, int64_t f, int64_t num_rows,
                   bool prune_negative) {
  const int64_t first = batch.Begin(feature.first_sample);
  const int64_t end = batch.Begin(feature.first_sample + feature.num_samples);
  if (AllAreRows(batch.ids + first, end - first, num_rows)) return {};
  for (int64_t s = 0; s < feature.num_samples; ++s) {
    const int64_t sample = feature.first_sample + s;
    for (int64_t i = batch.Begin(sample); i < batch.Begin(sample + 1); ++i) {
      const float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
      const IdUse use = UseOfId(batch.ids[i], weight, num_rows, feature.combiner, prune_negative);
      if (use == IdUse::kZeros) {
        return {FaultKind::kIdOutOfRange, static_cast<int32_t>(f), s, batch.ids[i]};
      }
    }
  }
  return {};
}

}  // namespace

Fault CheckIds(const Batch& batch, const Feature* features, int64_t num_features,
               const int64_t* num_rows, bool prune_negative, const ParallelFor& parallel_for) {
  std::vector<Fault> faults(num_features);
  parallel_for(num_features, kFeatureNanoseconds, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      const int64_t rows = num_rows[features[f].table];
      if (rows == kNotChecked) continue;
      faults[f] = CheckFeature(batch, features[f], f, rows, prune_negative);
    }
  });
  for (const Fault& fault : faults) {
    if (fault.kind != FaultKind::kNone) return fault;
  }
  return {};
}

}  // namespace group_embedding
