// The kernels that add up the output gradients of each looked-up row. Each table has a sink, which
// receives the rows' gradients; `Common` holds what all sinks share:
//
//   Sink::Table             the sink's description of a table
//   Sink::kKind             the kind of tables that the sink handles: see TableKind
//   Sink::kTakesRow         whether the sink needs row numbers
//   Sink::kBlocks           at most so many blocks of ReduceSegmentsKernel on a multiprocessor
//   Sink::kMaxTaken         staging slots: rows that a team takes at most before it calls Finish
//   Sink::Shared            shared memory of a block
//   Sink::NeedsRow(common)  whether the whole gradient of a row must be known before any column is
//   used Sink::Team<Vector, kAtOnce>
//                           for teams, in each of which a thread has a vector of the row. kAtOnce:
//                           it has several vectors, each with its own staging slot before Finish.
//                           Not for kAnyTable, where vectors are taken and finished one after the
//                           other
//     Start(first, count, place, column, has_column)
//                           announces that the thread will take its columns of `count` rows from
//                           `first` on, in staging slots from `place` on: the sink may fetch other
//                           data of them
//     Take(place, unique, row, column, has_column, sum)
//                           gives the thread's columns, from `column` on, of the gradient of the
//                           `unique`-th row of all tables; `row` is its number if kTakesRow
//     Finish(pass, first, count, column, has_column)
//                           called by a whole warp once each team has taken the columns of its rows
//                           from `first` on, in `count` staging slots
//     EndSum(unique, is_there)  ends the pass kSumOfRow of one row
//
// A row that occurs often is cut into pieces, so that no thread adds too many entries one after the
// other:
//   ListLongRowsKernel     lists these rows and their pieces                  reduce_long_rows.cuh
//   ReduceSegmentsKernel   all other rows, beside the kernels below
//   ReducePiecesKernel     the sum of each piece                              reduce_long_rows.cuh
//   AddPiecesKernel        adds the pieces of each row, in order              reduce_long_rows.cuh
//   TakeLongRowsKernel     gives the rows' sums to the sink                   reduce_long_rows.cuh
// The order of threads decides where pieces are listed, but not the result.
#pragma once

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "fused/combine_segments.cuh"
#include "fused/reduce_args.cuh"

namespace group_embedding {

inline constexpr int kReduceThreads = 256;

// The least size of a vector of plain tables: what a thread can copy to shared memory without
// registers.
inline constexpr int kMinPlainBytes = 4;

// To clip a gradient, or for a sink that asks for it, all columns of a row must be known: where a
// thread has several, it goes over them in up to three passes.
enum Pass : int { kNormOfRow = 0, kSumOfRow = 1, kLastPass = 2 };

// The sorted entries of a table, for CombineSegments.
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

  __device__ int64_t Seek(int64_t entry) const { return entry; }
  __device__ Fetched Fetch(int64_t cursor, int i) const {
    const bool has_factors = weighting != Weighting::kNone && args.sorted.factors != nullptr;
    return {__ldg(args.sorted.samples + cursor + i),
            has_factors ? __ldg(args.sorted.factors + cursor + i) : 1.0f};
  }
  __device__ bool HasRow(const Fetched&) const { return true; }
  __device__ const char* Row(const Fetched& fetched) const {
    GradientsOfFeature feature = task.feature;
    if (task.num_features > 1) feature = FeatureOf(fetched.sample);
    // After a fault in the row splits an entry's sample may be of another table.
    const uint32_t sample = min(fetched.sample - feature.first_sample, feature.last_sample);
    return feature.gradients + column_bytes + sample * feature.bytes_per_sample;
  }
  __device__ float Weight(const Fetched& fetched) const { return fetched.factor; }
  __device__ float WeightOfNone(const Fetched&) const { return 0.0f; }

  __device__ GradientsOfFeature FeatureOf(uint32_t sample) const {
    return task.features[FindOwnerAlone(task.num_features, sample,
                                        [&](int32_t f) { return task.features[f].first_sample; })];
  }
};

// Vectors of a row that a thread has.
template <typename Sink, bool kAtOnce>
__device__ __forceinline__ int NumColumns(const ReduceTask& task) {
  return Sink::kKind != kAnyTable && !kAtOnce ? 1 : task.shape.num_columns;
}

// A team adds up one row of which each thread has several vectors. It loads all vectors of an entry
// before it adds the first, so that they are in flight together.
template <typename Vector, Weighting weighting, typename Sink, typename Writer>
__device__ __forceinline__ void ReduceWideRow(const ReduceArgs& args, const ReduceTask& task,
                                              const Team& team, int64_t unique, Writer& writer) {
  constexpr int kColumns = Sink::kMaxTaken;
  const int num_columns = task.shape.num_columns;
  const int64_t begin = __ldg(args.sorted.segments + unique);
  const int64_t end = __ldg(args.sorted.segments + unique + 1);
  bool has_column[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int32_t column = c * team.size + team.lane;
    has_column[c] = c < num_columns && column < task.shape.num_vectors;
    if (c < num_columns) writer.Start(unique, 1, c, column * Vector::kSize, has_column[c]);
  }
  float sums[kColumns][Vector::kSize] = {};
  const GradientSource<weighting> source{args, task,
                                         team.lane * static_cast<int32_t>(sizeof(Vector))};
  auto next = source.Fetch(begin, 0);
  for (int64_t entry = begin; entry < end; ++entry) {
    const auto fetched = next;
    if (entry + 1 < end) next = source.Fetch(entry + 1, 0);
    const char* from = source.Row(fetched);
    const float weight = source.Weight(fetched);
    Vector vectors[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = int64_t{c} * team.size * static_cast<int64_t>(sizeof(Vector));
      vectors[c] = Vector::LoadIf(has_column[c], from + at);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int j = 0; j < Vector::kSize; ++j) {
        sums[c][j] = fmaf(weight, vectors[c][j], sums[c][j]);
      }
    }
  }
  const int64_t row = Sink::kTakesRow ? args.RowOf(task, unique) : 0;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (c >= num_columns) continue;
    const int32_t column = (c * team.size + team.lane) * Vector::kSize;
    writer.Take(c, unique, row, column, has_column[c], sums[c]);
  }
  writer.Finish(kLastPass, unique, num_columns, 0, has_column[0]);
}

// A unique row, as CombineSegments takes it.
struct UniqueRow {
  uint32_t end;  // of its entries
  int64_t row;   // in its table, if the sink takes it
};

template <typename Vector, bool kAtOnce, Weighting weighting, typename Sink>
__device__ void ReduceBlock(const ReduceArgs& args, const ReduceTask& task,
                            const typename Sink::Table& sink, const typename Sink::Common& common,
                            typename Sink::Shared& shared, int32_t table, int64_t block) {
  const Team team(task.shape.team_bits);
  const uint32_t* segments = args.sorted.segments;
  const int64_t rows_per_team =
      ReduceArgs::RowsPerTeam(args.sorted.num_unique[args.num_tables], args.num_ids);
  const int64_t begin =
      args.sorted.num_unique[table] +
      (block * (kReduceThreads >> task.shape.team_bits) + team.index) * rows_per_team;
  const int64_t left_of_table = args.sorted.num_unique[table + 1] - begin;
  // In 32 bits, which take fewer registers.
  int32_t left = static_cast<int32_t>(max(min(rows_per_team, left_of_table), int64_t{0}));
  uint32_t u = static_cast<uint32_t>(begin);  // if any are left

  typename Sink::template Team<Vector, kAtOnce> writer(args, table, sink, common, team, shared);
  const bool clips = weighting == Weighting::kClipping && task.max_norm > 0;
  const int num_columns = NumColumns<Sink, kAtOnce>(task);
  const bool is_wide = Sink::kKind == kAnyTable && num_columns > 1;
  const int first_pass = !is_wide                 ? kLastPass
                         : clips                  ? kNormOfRow
                         : Sink::NeedsRow(common) ? kSumOfRow
                                                  : kLastPass;
  int32_t step = 1;
  for (; __any_sync(kFullWarp, left > 0); u += step, left -= step) {
    // Short segments go together, to have several rows in flight.
    constexpr int32_t kMaxRows = Sink::kMaxTaken;
    const bool together = !kAtOnce && first_pass == kLastPass && left > 0 &&
                          segments[u + min(kMaxRows, left)] - segments[u] <= task.long_entries;
    step = together ? kMaxRows : 1;
    int num_rows = max(min(step, left), 0);
    const int64_t first_entry = num_rows > 0 ? segments[u] : 0;
    if (num_rows > 0 && !together && segments[u + 1] - first_entry > task.long_entries) {
      num_rows = 0;  // ListLongRowsKernel has it
    }
    if constexpr (kAtOnce) {  // the team is the warp
      if (num_rows > 0) ReduceWideRow<Vector, weighting, Sink>(args, task, team, u, writer);
      continue;
    }
    auto unique_row = [&](int s) {
      return UniqueRow{__ldg(segments + u + s + 1), Sink::kTakesRow ? args.RowOf(task, u + s) : 0};
    };
    ClipGradient clip;
    float squares = 0, dot = 0;
    for (int pass = first_pass; pass <= kLastPass; ++pass) {
      if (pass == kSumOfRow && !Sink::NeedsRow(common)) continue;
      for (int32_t c = 0; c < num_columns; ++c) {
        const int32_t column = c * team.size + team.lane;
        const bool has_column = column < task.shape.num_vectors;
        if (pass != kNormOfRow) {
          writer.Start(u, num_rows, /*place=*/0, column * Vector::kSize, has_column);
        }
        GradientSource<weighting> source{args, task, column * static_cast<int32_t>(sizeof(Vector))};
        CombineSegments<Vector>(
            num_rows, first_entry, has_column, unique_row, source, NoClip{},
            [&](int s, const UniqueRow& unique, Combined<Vector::kSize>& combined) {
              if (clips) {
                const char* row = args.RowAt(task, u + s);
                const Vector x = Vector::LoadIf(has_column, row + source.column_bytes);
                if (pass == kNormOfRow || !is_wide) {
                  for (int j = 0; j < Vector::kSize; ++j) {
                    squares += x[j] * x[j];
                    dot += x[j] * combined.sum[j];
                  }
                }
                if (pass == kNormOfRow) return;
                if (!is_wide) {
                  clip = ClipGradient::Of(team.Sum(squares), team.Sum(dot), task.max_norm);
                  squares = dot = 0;
                }
                for (int j = 0; j < Vector::kSize; ++j) {
                  combined.sum[j] = clip.scale * (combined.sum[j] - clip.along * x[j]);
                }
              }
              writer.Take(/*place=*/s, u + s, unique.row, column * Vector::kSize, has_column,
                          combined.sum);
            });
        if (pass != kNormOfRow) {
          writer.Finish(pass, u, num_rows, column * Vector::kSize, has_column);
        }
      }
      if (pass == kNormOfRow) {
        clip = ClipGradient::Of(team.Sum(squares), team.Sum(dot), task.max_norm);
      } else if (pass == kSumOfRow) {
        writer.EndSum(u, num_rows > 0);
      }
    }
  }
}

// Calls `body(vector, at_once)`, as of Sink::Team, for a table that the sink is for.
template <typename T, typename Sink, typename Body>
__device__ __forceinline__ void ForSinkTeam(const ReduceTask& task, Body&& body) {
  const std::true_type at_once;
  const std::false_type one_by_one;
  if constexpr (Sink::kKind == kAnyTable) {
    ForVector<T>(task.shape.vector_bytes, [&](auto vector) { body(vector, one_by_one); });
  } else if constexpr (Sink::kKind == kOneWord) {
    body(Vector<T, 16>{}, one_by_one);
  } else {
    ForVector<T>(task.shape.vector_bytes, [&](auto vector) {
      constexpr int kBytes = sizeof(vector.word);
      if (task.shape.num_columns > 1) {
        if constexpr (kBytes >= kMinPlainBytes) body(vector, at_once);
      } else {
        if constexpr (kBytes >= kMinPlainBytes && kBytes < 16) body(vector, one_by_one);
      }
    });
  }
}

template <typename Sink>
constexpr int BlocksOf(Weighting weighting) {
  return Sink::kBlocks < BlocksPerMultiprocessor(weighting) ? Sink::kBlocks
                                                            : BlocksPerMultiprocessor(weighting);
}

// Of `count` in so many shares, the one whose turn it is: one of each share in turn, so that
// neither the links to their memories nor this one's are idle. -1: none.
__device__ inline int64_t InTurns(int64_t turn, int64_t count, int64_t num_shares) {
  if (num_shares == 1) return turn < count ? turn : -1;  // divisions of 64 bits take their time
  const int64_t share = (count + num_shares - 1) / num_shares;
  const int64_t index = turn % num_shares * share + turn / num_shares;
  return turn / num_shares < share && index < count ? index : -1;
}

// A block works for one table and for a run of consecutive unique rows per team. A team of threads
// walks over the entries of its run; a thread has one vector of the row (or several, one after the
// other, where a row has more than 32). kClipping: some table has a max_norm.
template <typename T, Weighting weighting, typename Sink>
__global__ void __launch_bounds__(kReduceThreads, BlocksOf<Sink>(weighting))
    ReduceSegmentsKernel(const __grid_constant__ ReduceArgs args, const typename Sink::Table* sinks,
                         const __grid_constant__ typename Sink::Common common) {
  __shared__ typename Sink::Shared shared;
  const int64_t* first_blocks = args.first_blocks + Sink::kKind * (args.num_tables + 1);
  const int64_t index = InTurns(blockIdx.x, first_blocks[args.num_tables], args.num_owners);
  if (index < 0 || !Sink::IsActive(common)) return;
  const int64_t table = FindOwner(first_blocks, args.num_tables, index);
  const ReduceTask task = args.tasks[table];
  const int64_t block = index - first_blocks[table];
  ForSinkTeam<T, Sink>(task, [&](auto vector, auto at_once) {
    ReduceBlock<decltype(vector), at_once.value, weighting, Sink>(
        args, task, sinks[table], common, shared, static_cast<int32_t>(table), block);
  });
}

}  // namespace group_embedding
