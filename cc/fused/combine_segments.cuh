// The loop of the forward pass: weighted sums of rows that lie anywhere, over consecutive segments
// of a list. A segment is a sample, whose ids name the rows of a table.
#pragma once

#include "core/rows.cuh"

namespace group_embedding {

// The result of a segment.
template <int kSize>
struct Combined {
  float sum[kSize];  // of the thread's columns
  float sum_weights;
  float sum_squares;  // of the weights, where there are any

  __device__ void Clear() {
    for (int i = 0; i < kSize; ++i) sum[i] = 0;
    sum_weights = 0;
    sum_squares = 0;
  }
};

// The factors of entries: none, weights, or weights and norms.
enum class Weighting {
  kNone,      // every weight is 1
  kWeights,   // weights
  kClipping,  // weights, and rows that are clipped to a norm
};

// Rows that a team loads before it adds the first of them, whatever segments they belong to. More
// would take registers that other warps need: many warps hide the latency of memory better.
inline constexpr int kRowsInFlight = 4;

// How many blocks of 256 threads share a multiprocessor, which is how many registers they may use.
constexpr int BlocksPerMultiprocessor(Weighting weighting) {
  return weighting == Weighting::kClipping ? 3 : 4;
}

// Combines `num_segments` consecutive segments with one team of threads. Entries are added in their
// order. All threads of a warp call it together, including teams without segments.
//   begin         first entry of the first segment
//   segments(s)   the s-th segment: a struct with its `end` and data that the sink needs early.
//   Ends
//                 need not ascend: the loop ends in any case. If ends have 32 bits, `begin` has
//                 too, and positions take fewer registers
//   source        describes entries, in steps, so that the loads of later entries start early
//     Seek(p)         a cursor at entry p
//     Fetch(c, i)     reads the description of the i-th entry from the cursor
//     HasRow(f)       whether the entry with description f has a row to add
//     Row(f)          if it has: where the thread's vector of the row is, as Vector takes it
//     Weight(f)       if it has: the factor of the row
//     WeightOfNone(f) if it has none: its weight in the combiner's divisor
//     kWeighting
//   has_column    false for a thread that has no columns of the row and only helps to clip
//   clip(p, v)    the factor that clips entry p's row, of which the thread holds v
//   sink(s, segment, c)  receives the Combined of the s-th segment
template <typename Vector, typename Segments, typename Source, typename Clip, typename Sink>
__device__ __forceinline__ void CombineSegments(int num_segments, int64_t begin, bool has_column,
                                                Segments&& segments, Source& source, Clip&& clip,
                                                Sink&& sink) {
  constexpr int kRows = kRowsInFlight;
  using Segment = decltype(segments(0));
  auto segment_at = [&](int s) { return s < num_segments ? segments(s) : Segment{}; };
  // Positions are counted from the start of a window, in 32 bits; one that is behind the window
  // counts as anywhere there.
  constexpr int kWindow = 1 << 30;
  using Position = decltype(Segment{}.end);
  Position window = static_cast<Position>(begin);
  auto in_window = [&](int64_t position) {
    const int64_t within = position - int64_t{window};
    return static_cast<int>(max(min(within, int64_t{kWindow} + 2 * kRows), int64_t{0}));
  };
  const Position last_end = num_segments > 0 ? segments(num_segments - 1).end : window;
  int end = in_window(last_end);
  int s = 0;
  Segment segment = segment_at(0), next_segment = segment_at(1);
  int segment_end = in_window(segment.end);
  Combined<Vector::kSize> combined;
  combined.Clear();

  typename Source::Fetched fetched[kRows];
  auto fetch = [&](int from) {
    const auto cursor = source.Seek(int64_t{window} + from);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (from + i < end) fetched[i] = source.Fetch(cursor, i);
    }
  };
  fetch(0);
  for (int at = 0; __any_sync(kFullWarp, s < num_segments); at += kRows) {
    if (at >= kWindow) {
      window += at;
      end = in_window(last_end);
      segment_end = in_window(segment.end);
      at = 0;
    }
    const int count = max(min(end - at, kRows), 0);
    const bool is_last = end - at <= kRows;
    decltype(source.Row(fetched[0])) places[kRows];
    Vector vectors[kRows];
    float weights[kRows];
    unsigned rows = 0, counted = (1u << count) - 1;  // a bit per entry
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool has_row = (i < count) && source.HasRow(fetched[i]);
      rows |= static_cast<unsigned>(has_row) << i;
      weights[i] = has_row ? source.Weight(fetched[i]) : 0.0f;
      places[i] = source.Row(fetched[i]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {  // no branch between the loads, which would wait for one
      vectors[i] = Vector::LoadIf((rows >> i & 1) && has_column, places[i]);
    }
    if (rows != counted) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i < count && !(rows >> i & 1)) {
          weights[i] = source.WeightOfNone(fetched[i]);
          if (weights[i] == 0) counted &= ~(1u << i);
        }
      }
    }
    fetch(at + kRows);
    bool again = false;
    int next = 0;  // entry of the flight
    do {           // once for each segment that ends in this flight
      const int stop = max(min(segment_end - at, count), next);
      const unsigned now = (1u << stop) - (1u << next);
      next = stop;
      if constexpr (Source::kWeighting == Weighting::kNone) {
        combined.sum_weights += static_cast<float>(__popc(now & counted));
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if constexpr (Source::kWeighting != Weighting::kNone) {
          if ((now & counted) >> i & 1) {
            combined.sum_weights += weights[i];
            combined.sum_squares += weights[i] * weights[i];
          }
        }
        if ((now & rows) >> i & 1) {
          float weight = 1.0f;
          if constexpr (Source::kWeighting != Weighting::kNone) weight = weights[i];
          if constexpr (Source::kWeighting == Weighting::kClipping) {
            weight *= clip(int64_t{window} + at + i, vectors[i]);
          }
#pragma unroll
          for (int j = 0; j < Vector::kSize; ++j) {
            combined.sum[j] = fmaf(weight, vectors[i][j], combined.sum[j]);
          }
        }
      }
      if (s < num_segments && (segment_end - at <= next || (is_last && next == count))) {
        sink(s, segment, combined);
        combined.Clear();
        ++s;
        segment = next_segment;
        segment_end = in_window(segment.end);
        next_segment = segment_at(s + 1);
      }
      again = s < num_segments && (next < count || segment_end - at <= next || is_last);
    } while (__any_sync(kFullWarp, again));
  }
}

}  // namespace group_embedding
