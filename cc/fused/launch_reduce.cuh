// Host code that launches the kernels of reduce_rows.cuh. The number of unique rows stays on the
// device.
#pragma once

#include <algorithm>
#include <vector>

#include "core/side_stream.h"
#include "fused/reduce_long_rows.cuh"
#include "fused/reduce_rows.cuh"

namespace group_embedding {

// A stream beside another takes the host some 10 us.
inline constexpr int64_t kMinIdsBeside = int64_t{1} << 16;
// The blocks of ReducePiecesKernel on a multiprocessor. It has space for four; the other two are
// left to ReduceSegmentsKernel, which runs at the same time.
inline constexpr int kPieceBlocks = 2;

struct ReducePlan {
  std::vector<GradientsOfFeature> features;  // table by table
  std::vector<ReduceTask> tasks;
  Weighting weighting;
  int64_t max_blocks;
  bool has[kNumTableKinds];
};

// max_plain_columns: vectors of a thread that a row of a plain table has at most; 0: none are.
inline TableKind KindOf(const RowShape& shape, int64_t max_plain_columns) {
  if (shape.num_columns > max_plain_columns || shape.vector_bytes < kMinPlainBytes) {
    return kAnyTable;
  }
  return shape.num_columns == 1 && shape.vector_bytes == 16 ? kOneWord : kFewWords;
}

// Entries of a piece of a long row. Narrow rows have longer pieces, as adding up their sums takes a
// larger part of the time.
inline int32_t PieceEntries(int32_t dim) {
  constexpr auto kLeast = static_cast<int32_t>(kLeastPieceEntries);
  return dim <= 128 ? std::max(2 * dim + 32, kLeast) : kLeast;
}

// `alignments`: per table, the addresses of what else rows are written to, all or-ed together.
// max_plain_columns: of KindOf.
inline ReducePlan PlanReduce(const Group& group, const std::vector<int64_t>& alignments,
                             int64_t max_plain_columns) {
  ReducePlan plan{};
  std::vector<std::vector<int64_t>> features_of(group.num_tables);
  bool has_scales = group.batch.weights != nullptr, clips = false;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    // A feature without samples has no gradient, and the search by sample must not find it.
    if (feature.num_samples > 0 && feature.output != nullptr) {
      features_of[feature.table].push_back(f);
    }
    has_scales |= feature.combiner != Combiner::kSum;
  }
  int64_t first_key = 0, widest_team = 1;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    const Table& table = group.tables[t];
    int64_t alignment = alignments[t];
    if (table.max_norm > 0) alignment |= Alignment(table.rows);
    ReduceTask task{};
    task.num_features = static_cast<int32_t>(features_of[t].size());
    for (int64_t f : features_of[t]) {
      const Feature& feature = group.features[f];
      const int64_t stride = feature.output_stride * SizeOf(group.dtype);
      alignment |= Alignment(feature.output) | stride;
      plan.features.push_back({static_cast<const char*>(feature.output), stride,
                               static_cast<uint32_t>(feature.first_sample),
                               static_cast<uint32_t>(feature.num_samples - 1)});
    }
    if (task.num_features > 0)
      task.feature = plan.features[plan.features.size() - task.num_features];
    task.rows = static_cast<const char*>(table.rows);
    task.row_bytes = table.dim * SizeOf(group.dtype);
    task.first_key = first_key;
    task.shape = RowShape::Of(table.dim, group.dtype, alignment);
    task.dim = table.dim;
    task.max_norm = table.max_norm;
    const bool clips_row = table.max_norm > 0;
    task.kind = KindOf(task.shape, clips_row ? 0 : max_plain_columns);
    // A row of one piece goes straight to the sink, where the warp that adds it has it all at once.
    const bool at_once = !clips_row && (task.shape.num_columns == 1 || task.kind != kAnyTable);
    task.piece_entries = PieceEntries(table.dim);
    task.long_entries = at_once ? kMinLongEntries : task.piece_entries;
    plan.has[task.kind] = true;
    plan.tasks.push_back(task);
    first_key += table.num_rows;
    widest_team = std::max<int64_t>(widest_team, task.shape.team_size());
    clips |= clips_row;
  }
  plan.weighting = clips        ? Weighting::kClipping
                   : has_scales ? Weighting::kWeights
                                : Weighting::kNone;
  const int64_t entries_of_block = kReduceThreads / widest_team * kEntriesPerTeam;
  plan.max_blocks = group.batch.num_ids / entries_of_block + 1 + group.num_tables;
  return plan;
}

// A block for each kind of tables: a thread counts the blocks that a table needs, all of them add
// up.
template <typename = void>
__global__ void __launch_bounds__(kReduceThreads)
    PlanBlocksKernel(ReduceArgs args, int64_t* all_first_blocks) {
  __shared__ int64_t shared[kReduceThreads];
  const int64_t* num_unique = args.sorted.num_unique;
  const int64_t rows_per_team = ReduceArgs::RowsPerTeam(num_unique[args.num_tables], args.num_ids);
  int64_t* first_blocks = all_first_blocks + blockIdx.x * (args.num_tables + 1);
  int64_t before = 0;
  if (threadIdx.x == 0) first_blocks[0] = 0;
  for (int64_t first = 0; first < args.num_tables; first += kReduceThreads) {
    const int64_t t = first + threadIdx.x;
    int64_t count = 0;
    if (t < args.num_tables && args.tasks[t].kind == blockIdx.x) {
      const int64_t rows = (kReduceThreads >> args.tasks[t].shape.team_bits) * rows_per_team;
      count = (num_unique[t + 1] - num_unique[t] + rows - 1) / rows;
    }
    shared[threadIdx.x] = count;
    for (int offset = 1; offset < kReduceThreads; offset *= 2) {
      __syncthreads();
      const int64_t left = threadIdx.x >= offset ? shared[threadIdx.x - offset] : 0;
      __syncthreads();
      shared[threadIdx.x] += left;
    }
    __syncthreads();
    if (t < args.num_tables) first_blocks[t + 1] = before + shared[threadIdx.x];
    before += shared[kReduceThreads - 1];
    __syncthreads();
  }
}

inline int64_t MaxDim(const Group& group) {
  int64_t max_dim = 0;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    max_dim = std::max<int64_t>(max_dim, group.tables[t].dim);
  }
  return max_dim;
}

// Bytes of the sums of pieces. Rows of several pieces have more than kLeastPieceEntries entries, so
// that there are at most twice as many pieces as they would fill.
inline int64_t SumsBytes(const Group& group) {
  return AlignScratch(2 * group.batch.num_ids / kLeastPieceEntries * MaxDim(group) * sizeof(float));
}

template <typename Sink>
int64_t ReduceScratchBytes(const Group& group) {
  return SumsBytes(group) + AlignScratch(3 * sizeof(uint32_t)) +
         AlignScratch(kNumTableKinds * (group.num_tables + 1) * sizeof(int64_t)) +
         AlignScratch(group.num_features * sizeof(GradientsOfFeature)) +
         AlignScratch(group.num_tables * sizeof(ReduceTask)) +
         AlignScratch(group.num_tables * sizeof(typename Sink::Table));
}

// The kernels of one call, in the order in which they may be launched.
template <typename T>
class ReduceLauncher {
 public:
  // `scratch`: of ReduceScratchBytes; sinks: [num_tables].
  template <typename SinkTable>
  ReduceLauncher(const Group& group, const SortedRows& sorted, ReducePlan* plan,
                 const std::vector<SinkTable>& sinks, void* scratch, cudaStream_t stream,
                 int64_t num_owners = 1)
      : plan_(*plan), stream_(stream), long_rows_(stream) {
    args_.lists.sums = static_cast<float*>(scratch);
    args_.lists.sum_stride = MaxDim(group);
    char* memory = static_cast<char*>(scratch) + SumsBytes(group);
    uint32_t* counts = reinterpret_cast<uint32_t*>(memory);
    memory += AlignScratch(3 * sizeof(uint32_t));
    int64_t* first_blocks = reinterpret_cast<int64_t*>(memory);
    DeviceArrays arrays(memory +
                        AlignScratch(kNumTableKinds * (group.num_tables + 1) * sizeof(int64_t)));
    const GradientsOfFeature* features = arrays.Add(plan->features);
    for (ReduceTask& task : plan->tasks) {
      task.features = features;
      features += task.num_features;
    }
    args_.tasks = arrays.Add(plan->tasks);
    args_.first_blocks = first_blocks;
    args_.num_tables = group.num_tables;
    args_.num_ids = group.batch.num_ids;
    args_.num_owners = num_owners;
    args_.sorted = sorted;
    args_.lists.num_rows = counts;
    args_.lists.num_pieces = counts + 1;
    args_.lists.num_sums = counts + 2;
    args_.lists.rows = static_cast<LongRow*>(sorted.spare_rows);
    args_.lists.pieces_end =
        reinterpret_cast<LongPiece*>(sorted.segments + sorted.num_segment_words);
    sinks_ = arrays.Add(sinks);
    if ((error_ = arrays.Send(stream)) != cudaSuccess) return;
    error_ = cudaMemsetAsync(counts, 0, 3 * sizeof(uint32_t), stream);
    PlanBlocksKernel<><<<kNumTableKinds, kReduceThreads, 0, stream>>>(args_, first_blocks);
  }

  // Before all others. What becomes of long rows is beside what becomes of the others.
  template <typename Sink>
  void ListLongRows(const typename Sink::Common& common) {
    if (args_.num_ids <= kMinLongEntries || error_ != cudaSuccess) return;
    ListLongRowsKernel<Sink><<<SeveralEach(), kReduceThreads, 0, stream_>>>(args_, common);
    if (args_.num_ids < kMinIdsBeside) return;
    error_ = beside_.Begin(stream_);
    if (error_ == cudaSuccess) long_rows_ = beside_.stream();
  }

  template <typename Sink, Weighting weighting>
  void Segments(const typename Sink::Common& common) {
    ReduceSegmentsKernel<T, weighting, Sink>
        <<<static_cast<unsigned>(plan_.max_blocks + args_.num_owners), kReduceThreads, 0,
           stream_>>>(args_, Sinks<Sink>(), common);
  }

  // How many pieces there are, the device knows: blocks that find none end at once.
  template <typename Sink, Weighting weighting>
  void Pieces(const typename Sink::Common& common) {
    if (args_.num_ids <= kMinLongEntries) return;
    const auto num_blocks = static_cast<unsigned>(kPieceBlocks * NumMultiprocessors());
    ReducePiecesKernel<T, weighting, Sink>
        <<<num_blocks, kReduceThreads, 0, long_rows_>>>(args_, Sinks<Sink>(), common);
  }

  void AddPieces() {
    if (args_.num_ids <= kLeastPieceEntries) return;
    AddPiecesKernel<T><<<SeveralEach(), kAddThreads, 0, long_rows_>>>(args_);
  }

  template <typename Sink>
  void TakeLongRows(const typename Sink::Common& common) {
    if (args_.num_ids <= kLeastPieceEntries) return;
    TakeLongRowsKernel<T, Sink>
        <<<SeveralEach(), kReduceThreads, 0, long_rows_>>>(args_, Sinks<Sink>(), common);
  }

  // Called after all launches: the stream waits for the side stream.
  cudaError_t End() {
    for (const cudaError_t error : {beside_.End(), cudaGetLastError()}) {
      if (error_ == cudaSuccess) error_ = error;
    }
    return error_;
  }

 private:
  static unsigned SeveralEach() { return static_cast<unsigned>(4 * NumMultiprocessors()); }

  template <typename Sink>
  const typename Sink::Table* Sinks() const {
    return static_cast<const typename Sink::Table*>(sinks_);
  }

  const ReducePlan& plan_;
  cudaStream_t stream_, long_rows_;
  SideStream beside_;
  ReduceArgs args_;
  const void* sinks_;
  cudaError_t error_;
};

}  // namespace group_embedding
