// The kernels that add up the output gradients of each looked-up row. Each table has a sink, which
// receives the rows' gradients; `Common` holds what all sinks share:
//
//   Sink::Table             the sink's description of a table
//   Sink::kKind             the kind of tables that the sink handles: see TableKind
//   Sink::kBlocks           at most so many blocks of ReduceRowsKernel on a multiprocessor
//   Sink::kMaxTaken         staging slots: rows that a team takes at most before it calls Finish
//   Sink::kMaxColumns       vectors of a thread, at most, where kAtOnce: see below
//   Sink::Shared            shared memory of a block
//   Sink::IsActive(common)  whether anything is to be done
//   Sink::NeedsRow(common)  whether the whole gradient of a row must be known before any column is
//                           used
//   Sink::Team<Vector, kAtOnce>
//                           for teams, in each of which a thread has a vector of the row. kAtOnce:
//                           it has several vectors, each with its own staging slot before Finish.
//                           Not for kAnyTable, where vectors are taken and finished one after the
//                           other
//     Start(first, count, place, column, has_column)
//                           announces that the thread will take its columns of `count` rows from
//                           `first` on, in staging slots from `place` on: the sink may fetch other
//                           data of them
//     Take(place, unique, column, has_column, sum)
//                           gives the thread's columns, from `column` on, of the gradient of the
//                           `unique`-th row of all tables
//     Finish(pass, first, count, column, has_column)
//                           called by a whole warp once each team has taken the columns of its rows
//                           from `first` on, in `count` staging slots
//     EndSum(unique, is_there)  ends the pass kSumOfRow of one row
//
// The sorted entries are cut into windows. A team takes the rows that begin in its window. A long
// row is cut into pieces, and a team takes those pieces that begin in its window:
//   PlanReduceKernel     which windows a table has, and the first row of each    launch_reduce.cuh
//   ReduceRowsKernel     all but long rows, which it lists, and the sum of each piece
//   AddPiecesKernel      adds the pieces of rows of very many reduce_long_rows.cuh
//   TakeLongRowsKernel   adds those of others, and gives long rows to the sink reduce_long_rows.cuh
// How wide windows are changes no sum.
#pragma once

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "fused/gradient_source.cuh"
#include "fused/sum_segments.cuh"
#include "fused/window.cuh"

namespace group_embedding {

// The least size of a vector of plain tables: what a thread can copy to shared memory without
// registers.
inline constexpr int kMinPlainBytes = 4;

// To clip a gradient, or for a sink that asks for it, all columns of a row must be known: where a
// thread has several, it goes over them in up to three passes.
enum Pass : int { kNormOfRow = 0, kSumOfRow = 1, kLastPass = 2 };

// Vectors of a row that a thread has.
template <typename Sink, bool kAtOnce>
__device__ __forceinline__ int NumColumns(const ReduceTask& task) {
  return Sink::kKind != kAnyTable && !kAtOnce ? 1 : task.shape.num_columns;
}

// A team adds up a segment of a row of which each thread has several vectors. It loads all vectors
// of an entry before it adds the first, so that they are in flight together.
// take(c, sum): receives the sum of the thread's c-th vector.
template <typename Vector, int kColumns, typename Source, typename Take>
__device__ __forceinline__ void SumWideSegment(const ReduceTask& task, const Team& team,
                                               uint32_t begin, uint32_t end, const Source& source,
                                               const Take& take) {
  float sums[kColumns][Vector::kSize] = {};
  auto has_column = [&](int c) {
    return c < task.shape.num_columns && c * team.size + team.lane < task.shape.num_vectors;
  };
  auto next = source.Fetch(begin);
  for (uint32_t entry = begin; entry < end; ++entry) {
    const auto fetched = next;
    if (entry + 1 < end) next = source.Fetch(entry + 1);
    const char* from = source.Row(fetched);
    const float weight = source.Weight(fetched);
    Vector vectors[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = int64_t{c} * team.size * static_cast<int64_t>(sizeof(Vector));
      vectors[c] = Vector::LoadIf(has_column(c), from + at);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int j = 0; j < Vector::kSize; ++j) {
        sums[c][j] = fmaf(weight, vectors[c][j], sums[c][j]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (c < task.shape.num_columns) take(c, sums[c]);
  }
}

// Lists a long row, by one thread.
__device__ __forceinline__ void ListLongRow(const ReduceArgs& args, uint32_t unique,
                                            int32_t table) {
  const uint32_t* segments = args.sorted.segments;
  args.long_rows[atomicAdd(args.num_long, 1)] = {unique, table};
  if (segments[unique + 1] - segments[unique] > kManyPieces * kPieceEntries) {
    args.many[atomicAdd(args.num_long + 1, 1)] = {unique, table};
  }
}

// Adds up the rows of a window, several at a time.
template <typename Vector, bool kAtOnce, Weighting weighting, typename Sink>
class RowsReducer {
 public:
  using Writer = typename Sink::template Team<Vector, kAtOnce>;

  __device__ RowsReducer(const ReduceArgs& args, const ReduceTask& task, const Team& team,
                         Writer& writer)
      : args_(args), task_(task), team_(team), writer_(writer) {}

  // The entries of `count` rows from `first` on begin at `begin`. No rows where the team has no
  // more, but others of its warp have.
  __device__ void Reduce(const typename Sink::Common& common, uint32_t first, int count,
                         uint32_t begin) {
    if constexpr (kAtOnce) {
      if (count > 0) ReduceAtOnce(first, begin);
    } else if (NumColumns<Sink, kAtOnce>(task_) > 1) {
      if constexpr (Sink::kKind == kAnyTable) ReduceByColumn(common, first, count, begin);
    } else {
      const bool has_column = team_.lane < task_.shape.num_vectors;
      const int32_t column = team_.lane * Vector::kSize;
      writer_.Start(first, count, /*place=*/0, column, has_column);
      RowClip<Vector> clip{args_, task_, team_};
      Sum(first, count, begin, column, has_column, [&](int s, float(&sum)[Vector::kSize]) {
        if (Clips()) {
          const Vector row = clip.Row(first + s, column, has_column);
          clip.Add(row, sum);
          clip.EndRow();
          clip.Apply(row, sum);
        }
        writer_.Take(s, first + s, column, has_column, sum);
      });
      __syncwarp();
      writer_.Finish(kLastPass, first, count, column, has_column);
    }
  }

 private:
  __device__ bool Clips() const { return weighting == Weighting::kClipping && task_.max_norm > 0; }

  // take(s, sum): of the s-th row.
  template <typename Take>
  __device__ __forceinline__ void Sum(uint32_t first, int count, uint32_t begin, int32_t column,
                                      bool has_column, const Take& take) const {
    const GradientSource<weighting> source{
        args_, task_, column * static_cast<int32_t>(sizeof(typename Vector::Element))};
    const uint32_t* ends = args_.sorted.segments + first + 1;
    SumSegments<Vector, kRowsInFlight>(
        count, begin, has_column, [&](int s) { return __ldg(ends + s); }, source, take);
  }

  // One row, of which the thread, all of whose warp is the team, has several vectors.
  __device__ void ReduceAtOnce(uint32_t row, uint32_t begin) {
    auto column_of = [&](int c) { return (c * team_.size + team_.lane) * Vector::kSize; };
    auto has_column = [&](int c) { return c * team_.size + team_.lane < task_.shape.num_vectors; };
#pragma unroll
    for (int c = 0; c < Sink::kMaxColumns; ++c) {
      if (c < task_.shape.num_columns) writer_.Start(row, 1, c, column_of(c), has_column(c));
    }
    const GradientSource<weighting> source{args_, task_,
                                           team_.lane * static_cast<int32_t>(sizeof(Vector))};
    SumWideSegment<Vector, Sink::kMaxColumns>(
        task_, team_, begin, __ldg(args_.sorted.segments + row + 1), source,
        [&](int c, const float(&sum)[Vector::kSize]) {
          writer_.Take(c, row, column_of(c), has_column(c), sum);
        });
    writer_.Finish(kLastPass, row, task_.shape.num_columns, 0, has_column(0));
  }

  // One row or none, one vector of the thread after the other.
  __device__ void ReduceByColumn(const typename Sink::Common& common, uint32_t row, int count,
                                 uint32_t begin) {
    RowClip<Vector> clip{args_, task_, team_};
    for (int pass = Clips() ? kNormOfRow : kSumOfRow; pass <= kLastPass; ++pass) {
      if (pass == kSumOfRow && !Sink::NeedsRow(common)) continue;
      for (int32_t c = 0; c < task_.shape.num_columns; ++c) {
        const int32_t vector = c * team_.size + team_.lane, column = vector * Vector::kSize;
        const bool has_column = vector < task_.shape.num_vectors;
        if (pass != kNormOfRow) writer_.Start(row, count, /*place=*/0, column, has_column);
        Sum(row, count, begin, column, has_column, [&](int, float(&sum)[Vector::kSize]) {
          if (Clips()) {
            const Vector x = clip.Row(row, column, has_column);
            if (pass == kNormOfRow) return clip.Add(x, sum);
            clip.Apply(x, sum);
          }
          writer_.Take(/*place=*/0, row, column, has_column, sum);
        });
        if (pass != kNormOfRow) writer_.Finish(pass, row, count, column, has_column);
      }
      if (pass == kNormOfRow) clip.EndRow();
      if (pass == kSumOfRow) writer_.EndSum(row, count > 0);
    }
  }

  const ReduceArgs& args_;
  const ReduceTask& task_;
  const Team& team_;
  Writer& writer_;
};

// A team keeps the sum of a piece, if it has one.
template <typename Vector, Weighting weighting>
__device__ __forceinline__ void ReducePiece(const ReduceArgs& args, const ReduceTask& task,
                                            const Team& team, const Piece& piece) {
  for (int32_t c = 0; c < task.shape.num_columns; ++c) {
    const int32_t vector = c * team.size + team.lane;
    const bool has_column = vector < task.shape.num_vectors;
    const GradientSource<weighting> source{args, task,
                                           vector * static_cast<int32_t>(sizeof(Vector))};
    SumSegments<Vector, kRowsInFlight>(
        piece.end > piece.begin ? 1 : 0, piece.begin, has_column, [&](int) { return piece.end; },
        source,
        [&](int, const float(&sum)[Vector::kSize]) {
          if (!has_column) return;
          StoreVector<float, Vector::kSize>(
              sum, args.pieces.At(piece.begin, piece.is_first) + vector * Vector::kSize);
        });
  }
}

// The pieces that begin in a team's window. Lists the long row that begins there.
template <typename Vector, Weighting weighting>
__device__ __forceinline__ void ReducePieces(const ReduceArgs& args, const ReduceTask& task,
                                             const Team& team, int32_t table, int64_t index,
                                             const Window& window) {
  if (window.has_long_row && team.lane == 0) {
    ListLongRow(args, window.first + window.num_rows, table);
  }
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const Piece piece = i == 0 ? FindLaterPiece(args, table, index) : FirstPiece(window);
    ReducePiece<Vector, weighting>(args, task, team, piece);
  }
}

template <typename Vector, bool kAtOnce, Weighting weighting, typename Sink>
__device__ __forceinline__ void ReduceBlock(const ReduceArgs& args, const ReduceTask& task,
                                            const typename Sink::Table& sink,
                                            const typename Sink::Common& common,
                                            typename Sink::Shared& shared, int32_t table,
                                            int64_t block) {
  const Team team(task.shape.team_bits);
  const int64_t index = WindowOf(args, task, table, block, team);
  Window window{};
  if (index >= 0) {
    window = FindWindow(args, table, index);
    ReducePieces<Vector, weighting>(args, task, team, table, index, window);
  }
  typename Sink::template Team<Vector, kAtOnce> writer(args, table, sink, common, team, shared);
  RowsReducer<Vector, kAtOnce, weighting, Sink> reducer(args, task, team, writer);
  const bool one_by_one = kAtOnce || NumColumns<Sink, kAtOnce>(task) > 1;
  const int step = one_by_one ? 1 : static_cast<int>(Sink::kMaxTaken);
  for (int done = 0; __any_sync(kFullWarp, done < window.num_rows); done += step) {
    const int count = max(min(step, window.num_rows - done), 0);
    const uint32_t first = window.first + done;
    const uint32_t begin = count > 0 ? __ldg(args.sorted.segments + first) : 0;
    reducer.Reduce(common, first, count, begin);
  }
}

// Calls `body(vector, at_once)`, as of Sink::Team, for a table that the sink is for. kAllPlain: a
// sink of kFewWords gets tables of kOneWord, too.
template <typename T, typename Sink, bool kAllPlain = false, typename Body>
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
        constexpr bool kIsTaken = kBytes >= kMinPlainBytes && (kBytes < 16 || kAllPlain);
        if constexpr (kIsTaken) body(vector, one_by_one);
      }
    });
  }
}

template <typename Sink>
constexpr int BlocksOf(Weighting weighting) {
  return weighting != Weighting::kClipping || Sink::kBlocks < BlocksPerMultiprocessor(weighting)
             ? Sink::kBlocks
             : BlocksPerMultiprocessor(weighting);
}

// A block works for one table; FindTableBlock says which. kClipping: some table has a max_norm.
template <typename T, Weighting weighting, typename Sink>
__global__ void __launch_bounds__(kReduceThreads, BlocksOf<Sink>(weighting))
    ReduceRowsKernel(const __grid_constant__ ReduceArgs args, const typename Sink::Table* sinks,
                     const __grid_constant__ typename Sink::Common common) {
  __shared__ typename Sink::Shared shared;
  const TableBlock at = FindTableBlock(args, Sink::kKind);
  if (at.table < 0 || !Sink::IsActive(common)) return;
  const ReduceTask task = args.tasks[at.table];
  ForSinkTeam<T, Sink>(task, [&](auto vector, auto at_once) {
    ReduceBlock<decltype(vector), at_once.value, weighting, Sink>(
        args, task, sinks[at.table], common, shared, at.table, at.block);
  });
}

}  // namespace group_embedding
