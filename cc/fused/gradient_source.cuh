// Where the gradient of a row comes from: output gradients, named by sorted entries; and how it is
// clipped.
#pragma once

#include "fused/combine_segments.cuh"
#include "fused/reduce_args.cuh"

namespace group_embedding {

// The sorted entries of a table, for SumSegments.
template <Weighting weighting>
struct GradientSource {
  static constexpr Weighting kWeighting = weighting;
  struct Fetched {
    uint32_t sample;
    float factor;
  };

  const ReduceArgs& args;
  const ReduceTask& task;
  int32_t column_bytes;  // where the thread's vector is in a row

  __device__ Fetched Fetch(uint32_t entry) const {
    const bool has_factors = weighting != Weighting::kNone && args.sorted.factors != nullptr;
    return {__ldg(args.sorted.samples + entry),
            has_factors ? __ldg(args.sorted.factors + entry) : 1.0f};
  }
  __device__ const char* Row(const Fetched& fetched) const {
    GradientsOfFeature feature = task.feature;
    if (task.num_features > 1) feature = FeatureOf(fetched.sample);
    // After a fault in the row splits an entry's sample may be of another table.
    const uint32_t sample = min(fetched.sample - feature.first_sample, feature.last_sample);
    return feature.gradients + column_bytes + uint64_t{sample} * feature.bytes_per_sample;
  }
  __device__ float Weight(const Fetched& fetched) const { return fetched.factor; }

  __device__ GradientsOfFeature FeatureOf(uint32_t sample) const {
    return task.features[FindOwnerAlone(task.num_features, sample,
                                        [&](int32_t f) { return task.features[f].first_sample; })];
  }
};

// Clips the gradient of a row to what its norm leaves of it. All threads of a team call it
// together.
template <typename Vector>
struct RowClip {
  const ReduceArgs& args;
  const ReduceTask& task;
  const Team& team;
  float squares = 0, dot = 0;  // of the thread's columns, so far
  ClipGradient scale;

  __device__ Vector Row(int64_t unique, int32_t column, bool has_column) const {
    const char* row = args.RowAt(task, unique);
    return Vector::LoadIf(has_column, row + column * sizeof(typename Vector::Element));
  }
  __device__ void Add(const Vector& row, const float (&sum)[Vector::kSize]) {
    for (int j = 0; j < Vector::kSize; ++j) {
      squares += row[j] * row[j];
      dot += row[j] * sum[j];
    }
  }
  __device__ void EndRow() {
    scale = ClipGradient::Of(team.Sum(squares), team.Sum(dot), task.max_norm);
    squares = dot = 0;
  }
  __device__ void Apply(const Vector& row, float (&sum)[Vector::kSize]) const {
    for (int j = 0; j < Vector::kSize; ++j) sum[j] = scale.scale * (sum[j] - scale.along * row[j]);
  }
};

}  // namespace group_embedding
