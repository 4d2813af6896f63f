// The loop that both passes share: weighted sums of rows that lie anywhere, over consecutive segments
// of a list. Forward, a segment is a sample and the rows are the table's; backward, a segment is a
// unique row of the table and the rows are output gradients.
#pragma once

#include "core/rows.cuh"

namespace group_embedding {

// One entry of the list, as a source describes it.
struct Item {
  const void* row;  // what to add, or null: nothing, but the weight counts in the combiner's divisor
  float weight;     // times what
};

// What a segment comes to.
template <int kSize>
struct Combined {
  float sum[kSize];  // of the thread's columns
  float sum_weights;
  float sum_squares;  // of the weights

  __device__ void Clear() {
    for (int i = 0; i < kSize; ++i) sum[i] = 0;
    sum_weights = 0;
    sum_squares = 0;
  }
};

// Rows that a team loads before it adds the first of them, whatever segments they belong to: what
// hides the latency of memory.
inline constexpr int kRowsInFlight = 8;

// Combines segments [first, last), first < last, one team of threads for all of them. Entries are
// added in their order.
//   column        the thread's vector within a row; threads with has_column false only take part in
//                 what the team does together
//   begin         first entry of segment `first`
//   ends(s)       where segment s ends. They need not ascend: the loop ends in any case
//   source(p)     the Item of entry p; its row is that of the team, not of the thread
//   clip(p, v)    what entry p's row, of which the thread holds v, is multiplied by
//   sink(s, c)    takes the Combined of segment s
template <typename Vector, typename Ends, typename Source, typename Clip, typename Sink>
__device__ __forceinline__ void CombineSegments(int64_t first, int64_t last, int64_t begin,
                                                int32_t column, bool has_column, Ends&& ends,
                                                Source&& source, Clip&& clip, Sink&& sink) {
  Combined<Vector::kSize> combined;
  combined.Clear();
  int64_t segment = first;
  int64_t segment_end = ends(first);
  const int64_t end = ends(last - 1);
  for (int64_t at = begin; at < end; at += kRowsInFlight) {
    float weights[kRowsInFlight];
    Vector vectors[kRowsInFlight];
    unsigned has_row = 0;
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const Item item = at + i < end ? source(at + i) : Item{nullptr, 0};
      weights[i] = item.weight;
      has_row |= (item.row != nullptr ? 1u : 0u) << i;
      vectors[i] = item.row != nullptr && has_column
                       ? Vector::Load(static_cast<const Vector*>(item.row) + column)
                       : Vector::Zeros();
    }
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (at + i < end) {
        while (at + i >= segment_end) {
          sink(segment, combined);
          combined.Clear();
          segment_end = ends(++segment);
        }
        combined.sum_weights += weights[i];
        combined.sum_squares += weights[i] * weights[i];
        const float weight = has_row >> i & 1 ? weights[i] * clip(at + i, vectors[i]) : 0.0f;
#pragma unroll
        for (int j = 0; j < Vector::kSize; ++j) combined.sum[j] += weight * vectors[i][j];
      }
    }
  }
  for (; segment < last; ++segment) {  // the one at the end of the list, and empty ones after it
    sink(segment, combined);
    combined.Clear();
  }
}

// The clip of rows that are read as they are.
struct NoClip {
  template <typename Vector>
  __device__ float operator()(int64_t, const Vector&) const {
    return 1.0f;
  }
};

}  // namespace group_embedding
