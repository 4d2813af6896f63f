// The kernels of ReduceRowsCuda. What becomes of a row's gradient is up to a sink, of which there
// is one per table:
//
//   sink(unique, row, column, gradient)
//       takes columns [column, column + kSize) of the gradient of row `row`, the `unique`-th of
//       those looked up in the table
//
// A row that occurs often is cut into pieces, so that no thread has too many entries to add one
// after the other:
//   ReduceSegmentsKernel   all other rows; lists the pieces of the long ones
//   ReducePiecesKernel     the sum of each piece                              reduce_long_rows.cuh
//   AddPiecesKernel        the long rows: their pieces, added in order        reduce_long_rows.cuh
// Where pieces are listed depends on the order of threads, what they come to does not.
#pragma once

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "fused/combine_segments.cuh"
#include "fused/group_lookup_grad.h"

namespace group_embedding {

inline constexpr int kReduceThreads = 256;
inline constexpr int64_t kLongSegment = 64;  // entries, from one more on a row is long
inline constexpr int64_t kPieceEntries = 128;

// The output gradients of one feature of a table.
struct GradientsOfFeature {
  const char* gradients;
  int64_t bytes_per_sample;
  uint32_t first_sample;
};

// One table, as the kernels need it.
struct ReduceTask {
  const char* rows;
  int64_t row_bytes;
  GradientsOfFeature feature;          // the first of them
  const GradientsOfFeature* features;  // all, ascending
  int32_t num_features;
  int64_t first_unique;
  int64_t num_unique;
  RowShape shape;  // of rows and gradients
  int32_t dim;
  int32_t rows_per_team;
  float max_norm;
  bool has_scales;  // some combiner is not a sum
};

struct LongPiece {
  int64_t begin;  // of its entries
  int32_t count;
  int32_t table;
};

struct LongRow {
  int64_t unique;  // over all tables
  uint32_t first_piece;
  uint32_t num_pieces;
  int32_t table;
};

struct LongLists {
  uint32_t* num_rows;    // [1]
  uint32_t* num_pieces;  // [1]
  LongRow* rows;
  LongPiece* pieces;
  float* sums;  // [pieces, max_dim]
  int64_t max_dim;
};

struct ReduceArgs {
  const ReduceTask* tasks;      // [num_tables]
  const int64_t* first_blocks;  // [num_tables + 1]
  int64_t num_tables;
  SortedRows sorted;
  const float* weights;  // of the batch, or null
  LongLists lists;
};

// The sorted entries of a table, for CombineSegments.
template <Weighting weighting>
struct GradientSource {
  static constexpr Weighting kWeighting = weighting;
  struct Fetched {
    uint32_t sample;
    uint32_t position;  // where the batch has weights
  };

  const ReduceArgs& args;
  const ReduceTask& task;
  int32_t column_bytes;  // where the thread's vector is in a row

  __device__ const uint32_t* Seek(int64_t entry) const { return args.sorted.positions + entry; }
  __device__ Fetched Fetch(const uint32_t* cursor, int i) const {
    const uint32_t position = __ldg(cursor + i);
    if (weighting == Weighting::kNone || args.sorted.samples == nullptr) return {position, 0};
    return {__ldg(args.sorted.samples + position), position};
  }
  __device__ bool HasRow(const Fetched&) const { return true; }
  __device__ const char* Row(const Fetched& fetched) const {
    GradientsOfFeature feature = task.feature;
    if (task.num_features > 1) feature = FeatureOf(fetched.sample);
    return feature.gradients + column_bytes +
           (fetched.sample - feature.first_sample) * feature.bytes_per_sample;
  }
  __device__ float Weight(const Fetched& fetched) const {
    if (weighting == Weighting::kNone) return 1.0f;
    float weight = task.has_scales ? __ldg(args.sorted.scales + fetched.sample) : 1.0f;
    if (args.weights != nullptr) weight *= __ldg(args.weights + fetched.position);
    return weight;
  }
  __device__ float WeightOfNone(const Fetched&) const { return 0.0f; }

  __device__ GradientsOfFeature FeatureOf(uint32_t sample) const {
    int32_t begin = 0, end = task.num_features;
    while (end - begin > 1) {
      const int32_t middle = (begin + end) / 2;
      (task.features[middle].first_sample <= sample ? begin : end) = middle;
    }
    return task.features[begin];
  }
};

__device__ inline void ListLongRow(const ReduceArgs& args, const Team& team, int32_t table,
                                   int64_t unique) {
  const int64_t begin = args.sorted.segments[unique], end = args.sorted.segments[unique + 1];
  const uint32_t num_pieces =
      static_cast<uint32_t>((end - begin + kPieceEntries - 1) / kPieceEntries);
  uint32_t first = 0;
  if (team.lane == 0) {
    first = atomicAdd(args.lists.num_pieces, num_pieces);
    args.lists.rows[atomicAdd(args.lists.num_rows, 1)] = {unique, first, num_pieces, table};
  }
  first = team.FromFirst(first);
  for (uint32_t p = team.lane; p < num_pieces; p += team.size) {
    const int64_t at = begin + p * kPieceEntries;
    args.lists.pieces[first + p] = {at, static_cast<int32_t>(min(kPieceEntries, end - at)), table};
  }
}

// A unique row, as CombineSegments takes it.
struct UniqueRow {
  int64_t end;  // of its entries
  int64_t row;  // in its table
};

template <typename Vector, Weighting weighting, typename Sink>
__device__ void ReduceBlock(const ReduceArgs& args, const ReduceTask& task, const Sink& sink,
                            int32_t table, int64_t block) {
  const Team team(task.shape.team_bits);
  const int64_t* segments = args.sorted.segments;
  const int64_t begin =
      task.first_unique +
      (block * (kReduceThreads >> task.shape.team_bits) + team.index) * task.rows_per_team;
  const int64_t end = min(begin + task.rows_per_team, task.first_unique + task.num_unique);

  const bool clips = weighting == Weighting::kClipping && task.max_norm > 0;
  // To clip, all columns of a gradient must be known: where a thread has several, a first pass over
  // them learns how the gradient lies to the row.
  const bool two_passes = clips && task.shape.num_columns > 1;
  // Short segments go together, to have several rows in flight.
  const bool together =
      !two_passes && begin < end && segments[end] - segments[begin] <= kLongSegment;
  const int step = together ? static_cast<int>(end - begin) : 1;
  for (int64_t u = begin; __any_sync(kFullWarp, u < end); u += step) {
    int num_rows = u < end ? step : 0;
    const int64_t first_entry = num_rows > 0 ? segments[u] : 0;
    if (num_rows > 0 && !together && segments[u + 1] - first_entry > kLongSegment) {
      ListLongRow(args, team, table, u);
      num_rows = 0;
    }
    auto unique_row = [&](int s) {
      return UniqueRow{__ldg(segments + u + s + 1), __ldg(args.sorted.rows + u + s)};
    };
    ClipGradient clip;
    float squares = 0, dot = 0;
    for (int pass = two_passes ? 0 : 1; pass < 2; ++pass) {
      for (int32_t c = 0; c < task.shape.num_columns; ++c) {
        const int32_t column = c * team.size + team.lane;
        const bool has_column = column < task.shape.num_vectors;
        GradientSource<weighting> source{args, task, column * static_cast<int32_t>(sizeof(Vector))};
        CombineSegments<Vector>(
            num_rows, first_entry, has_column, unique_row, source, NoClip{},
            [&](int s, const UniqueRow& unique, Combined<Vector::kSize>& combined) {
              if (clips) {
                const char* row = task.rows + unique.row * task.row_bytes;
                const Vector x = Vector::LoadIf(has_column, row + source.column_bytes);
                for (int j = 0; j < Vector::kSize; ++j) {
                  squares += x[j] * x[j];
                  dot += x[j] * combined.sum[j];
                }
                if (pass == 0) return;
                if (!two_passes) {
                  clip = ClipGradient::Of(team.Sum(squares), team.Sum(dot), task.max_norm);
                  squares = dot = 0;
                }
                for (int j = 0; j < Vector::kSize; ++j) {
                  combined.sum[j] = clip.scale * (combined.sum[j] - clip.along * x[j]);
                }
              }
              if (has_column) {
                sink(u + s - task.first_unique, unique.row, column * Vector::kSize, combined.sum);
              }
            });
      }
      if (pass == 0) clip = ClipGradient::Of(team.Sum(squares), team.Sum(dot), task.max_norm);
    }
  }
}

// A block works for one table and for a run of consecutive unique rows per team. A team of threads
// walks over the entries of its run; a thread has one vector of the row (or several, one after the
// other, where a row has more than 32). kClipping: some table has a max_norm.
template <typename T, Weighting weighting, typename Sink>
__global__ void __launch_bounds__(kReduceThreads, BlocksPerMultiprocessor(weighting))
    ReduceSegmentsKernel(ReduceArgs args, const Sink* sinks) {
  const int64_t table = FindOwner(args.first_blocks, args.num_tables, blockIdx.x);
  const ReduceTask task = args.tasks[table];
  const Sink sink = sinks[table];
  const int64_t block = blockIdx.x - args.first_blocks[table];
  ForVector<T>(task.shape.vector_bytes, [&](auto vector) {
    ReduceBlock<decltype(vector), weighting>(args, task, sink, static_cast<int32_t>(table), block);
  });
}

}  // namespace group_embedding
