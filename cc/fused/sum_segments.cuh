// The loop of the backward pass: sums of output gradients over consecutive segments of the sorted
// entries. As CombineSegments, but each segment has an entry, most have one alone, and the sum is
// all that is asked of them.
#pragma once

#include "fused/combine_segments.cuh"

namespace group_embedding {

// Adds up `num_segments` consecutive segments with one team of threads, the entries of each in
// their order. An entry may end a segment wherever it is among those in flight; teams of one warp
// need not agree.
//   begin            first entry of the first segment
//   end_of(s)        the end of the s-th segment; loads it
//   source           describes entries, as GradientSource does: Fetch, Row, Weight, kWeighting
//   take(s, sum)     receives the thread's columns of the s-th sum
template <typename Vector, int kRows, typename EndOf, typename Source, typename Take>
__device__ __forceinline__ void SumSegments(int num_segments, uint32_t begin, bool has_column,
                                            const EndOf& end_of, const Source& source,
                                            const Take& take) {
  if (num_segments <= 0) return;
  const uint32_t last = end_of(num_segments - 1);
  auto end_if_any = [&](int s) { return s < num_segments ? end_of(s) : 0; };
  uint32_t end = end_of(0), next_end = end_if_any(1);
  int s = 0;
  float sum[Vector::kSize] = {};
  typename Source::Fetched fetched[kRows];
  auto fetch = [&](uint32_t from) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (from + i < last) fetched[i] = source.Fetch(from + i);
    }
  };
  fetch(begin);
#pragma unroll 1
  for (uint32_t at = begin; at < last; at += kRows) {
    const char* places[kRows];
    Vector vectors[kRows];
    float weights[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      weights[i] = source.Weight(fetched[i]);
      places[i] = source.Row(fetched[i]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {  // no branch between the loads, which would wait for one
      vectors[i] = Vector::LoadIf(at + i < last && has_column, places[i]);
    }
    fetch(at + kRows);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Vector::kSize; ++j) {
        sum[j] = Source::kWeighting == Weighting::kNone ? sum[j] + vectors[i][j]
                                                        : fmaf(weights[i], vectors[i][j], sum[j]);
      }
      if (at + i + 1 == end) {
        take(s, sum);
#pragma unroll
        for (float& value : sum) value = 0;
        end = next_end;
        next_end = end_if_any(++s + 1);
      }
    }
  }
}

}  // namespace group_embedding
