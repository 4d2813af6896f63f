// Host code that launches the kernels of reduce_rows.cuh. The number of unique rows stays on the
// device.
#pragma once

#include <algorithm>
#include <vector>

#include "fused/plan_reduce.cuh"
#include "fused/reduce_long_rows.cuh"

namespace group_embedding {

struct ReducePlan {
  bool HasPlain() const { return has[kOneWord] || has[kFewWords]; }

  std::vector<GradientsOfFeature> features;  // table by table
  std::vector<ReduceTask> tasks;
  Weighting weighting;
  int32_t window_bits;
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

inline constexpr int32_t kLeastWindowBits = 3;
inline constexpr int64_t kLeastWindow = int64_t{1} << kLeastWindowBits;

// Windows are narrower than a piece where the device would be short of threads.
inline int32_t WindowBits(int64_t num_ids, int64_t team_size) {
  constexpr int64_t kThreadsPerMultiprocessor = 8192;
  int32_t bits = kLeastWindowBits;
  while ((2 << bits) <= static_cast<int64_t>(kPieceEntries) &&
         (num_ids >> (bits + 1)) * team_size >= kThreadsPerMultiprocessor * NumMultiprocessors()) {
    ++bits;
  }
  return bits;
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
  int64_t first_key = 0, widest_team = 1, largest_stride = 0;
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
      largest_stride = std::max(largest_stride, stride);
      plan.features.push_back({static_cast<const char*>(feature.output),
                               static_cast<uint32_t>(stride),
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
    plan.has[task.kind] = true;
    plan.tasks.push_back(task);
    first_key += table.num_rows;
    widest_team = std::max<int64_t>(widest_team, task.shape.team_size());
    clips |= clips_row;
  }
  plan.weighting = clips        ? Weighting::kClipping
                   : has_scales ? Weighting::kWeights
                                : Weighting::kNone;
  plan.window_bits = WindowBits(group.batch.num_ids, widest_team);
  // Two tables may share a window, and none fills its last block.
  const int64_t entries_of_block = kReduceThreads / widest_team << plan.window_bits;
  plan.max_blocks = group.batch.num_ids / entries_of_block + 1 + 3 * group.num_tables;
  if (largest_stride > UINT32_MAX) plan.max_blocks = INT64_MAX;  // no such launch
  return plan;
}

inline int64_t MaxDim(const Group& group) {
  int64_t max_dim = 0;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    max_dim = std::max<int64_t>(max_dim, group.tables[t].dim);
  }
  return max_dim;
}

// Elements from the sum of one piece to the next.
inline int64_t PieceStride(const Group& group) { return (MaxDim(group) + 3) / 4 * 4; }

// Rows that may have more than so many pieces.
inline int64_t MaxRows(const Group& group, int64_t pieces) {
  return group.batch.num_ids / (pieces * kPieceEntries) + 1;
}

template <typename Sink>
int64_t ReduceScratchBytes(const Group& group) {
  return AlignScratch(PieceSums::Bytes(group.batch.num_ids, PieceStride(group))) +
         AlignScratch(MaxRows(group, 1) * sizeof(LongRow)) +
         AlignScratch(MaxRows(group, kManyPieces) * sizeof(LongRow)) +
         AlignScratch(2 * sizeof(uint32_t)) +
         AlignScratch((group.batch.num_ids / kLeastWindow + 2) * sizeof(uint32_t)) +
         AlignScratch(kNumTableKinds * (group.num_tables + 1) * sizeof(int64_t)) +
         AlignScratch(group.num_features * sizeof(GradientsOfFeature)) +
         AlignScratch(group.num_tables * sizeof(ReduceTask)) +
         AlignScratch(group.num_tables * sizeof(typename Sink::Table));
}

// The kernels of one call, in the order in which they may be launched. After an error, which
// End returns, none is launched.
template <typename T>
class ReduceLauncher {
 public:
  // `scratch`: of ReduceScratchBytes; sinks: [num_tables].
  template <typename SinkTable>
  ReduceLauncher(const Group& group, const SortedRows& sorted, ReducePlan* plan,
                 const std::vector<SinkTable>& sinks, void* scratch, cudaStream_t stream,
                 int64_t num_owners = 1)
      : plan_(*plan), stream_(stream) {
    char* memory = static_cast<char*>(scratch);
    auto take = [&](int64_t bytes) {
      char* part = memory;
      memory += AlignScratch(bytes);
      return part;
    };
    args_.pieces.stride = PieceStride(group);
    args_.pieces.sums =
        reinterpret_cast<float*>(take(PieceSums::Bytes(group.batch.num_ids, args_.pieces.stride)));
    args_.long_rows = reinterpret_cast<LongRow*>(take(MaxRows(group, 1) * sizeof(LongRow)));
    args_.many = reinterpret_cast<LongRow*>(take(MaxRows(group, kManyPieces) * sizeof(LongRow)));
    args_.num_long = reinterpret_cast<uint32_t*>(take(2 * sizeof(uint32_t)));
    args_.window_rows = reinterpret_cast<uint32_t*>(
        take((group.batch.num_ids / kLeastWindow + 2) * sizeof(uint32_t)));
    int64_t* first_blocks =
        reinterpret_cast<int64_t*>(take(kNumTableKinds * (group.num_tables + 1) * sizeof(int64_t)));
    DeviceArrays arrays(memory);
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
    args_.window_bits = plan->window_bits;
    sinks_ = arrays.Add(sinks);
    if ((error_ = arrays.Send(stream)) != cudaSuccess) return;
    const int64_t num_threads = args_.NumWindows(args_.num_ids) + 1;
    PlanReduceKernel<><<<static_cast<unsigned>(kNumTableKinds + num_threads / kReduceThreads + 1),
                         kReduceThreads, 0, stream>>>(args_, first_blocks);
  }

  // Adds up the rows of the sink's tables, and the pieces of long ones.
  template <typename Sink>
  void Reduce(const typename Sink::Common& common) {
    if (error_ != cudaSuccess) return;
    ForWeighting<Sink::kKind>([&](auto weighting) {
      ReduceRowsKernel<T, weighting.value, Sink>
          <<<NumBlocks(), kReduceThreads, 0, stream_>>>(args_, Sinks<Sink>(), common);
    });
  }

  // As Reduce for tables of kOneWord, by a kernel of the caller's: kernel_of(weighting).
  template <typename Sink, typename KernelOf>
  void ReduceWith(const typename Sink::Common& common, const KernelOf& kernel_of) {
    if (error_ != cudaSuccess) return;
    ForWeighting<kOneWord>([&](auto weighting) {
      kernel_of(weighting)<<<NumBlocks(), kReduceThreads, 0, stream_>>>(args_, Sinks<Sink>(),
                                                                        common);
    });
  }

  // After Reduce for all sinks.
  void AddPieces() {
    if (args_.num_ids <= kManyPieces * kPieceEntries || error_ != cudaSuccess) return;
    AddPiecesKernel<>
        <<<static_cast<unsigned>(2 * NumMultiprocessors()), kAddThreads, 0, stream_>>>(args_);
  }

  // After AddPieces. A sink of kFewWords takes the long rows of all plain tables.
  template <typename Sink>
  void TakeLongRows(const typename Sink::Common& common) {
    static_assert(Sink::kKind != kOneWord);
    if (args_.num_ids <= kPieceEntries || error_ != cudaSuccess) return;
    TakeLongRowsKernel<T, Sink>
        <<<SeveralEach(), kReduceThreads, 0, stream_>>>(args_, Sinks<Sink>(), common);
  }

  // The kernel of what else is done with unique rows, by any number of blocks of kReduceThreads.
  template <typename Sink, typename Kernel>
  void ForUniqueRows(const Kernel& kernel) {
    if (error_ != cudaSuccess) return;
    kernel<<<SeveralEach(), kReduceThreads, 0, stream_>>>(args_, Sinks<Sink>());
  }

  cudaError_t End() const { return error_ == cudaSuccess ? cudaGetLastError() : error_; }

 private:
  static unsigned SeveralEach() { return static_cast<unsigned>(4 * NumMultiprocessors()); }
  unsigned NumBlocks() const { return static_cast<unsigned>(plan_.max_blocks + args_.num_owners); }

  // Calls body with the Weighting that tables of a kind need. Only kOneWord has kernels without
  // weights: they gain most, and each kernel takes long to compile.
  template <TableKind kKind, typename Body>
  void ForWeighting(const Body& body) const {
    if constexpr (kKind == kOneWord) {
      constexpr Weighting kNone = Weighting::kNone;
      if (plan_.weighting == kNone) return body(std::integral_constant<Weighting, kNone>{});
    }
    constexpr Weighting kAll = kKind == kAnyTable ? Weighting::kClipping : Weighting::kWeights;
    body(std::integral_constant<Weighting, kAll>{});
  }

  template <typename Sink>
  const typename Sink::Table* Sinks() const {
    return static_cast<const typename Sink::Table*>(sinks_);
  }

  const ReducePlan& plan_;
  cudaStream_t stream_;
  ReduceArgs args_;
  const void* sinks_;
  cudaError_t error_;
};

}  // namespace group_embedding
