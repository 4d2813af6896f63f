#include <algorithm>
#include <vector>

#include "fused/reduce_long_rows.cuh"
#include "fused/reduce_rows.cuh"

namespace group_embedding {
namespace {

// The sink that keeps the gradients, as the indices and values of an IndexedSlices.
template <typename T>
struct StoreGradient {
  int64_t* indices;
  T* values;
  int64_t dim;

  template <int kSize>
  __device__ void operator()(int64_t unique, int64_t row, int32_t column,
                             const float (&gradient)[kSize]) const {
    if (column == 0) indices[unique] = row;
    Vector<T, kSize * sizeof(T)>::Round(gradient).Stream(values + unique * dim + column);
  }
};

// Upper bounds: a long row has more than kLongSegment entries, and one piece that is not full.
int64_t MaxLongRows(const Group& group) { return group.batch.num_ids / kLongSegment; }
int64_t MaxPieces(const Group& group) {
  return MaxLongRows(group) + group.batch.num_ids / kPieceEntries;
}

int64_t MaxDim(const Group& group) {
  int64_t max_dim = 1;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    max_dim = std::max<int64_t>(max_dim, group.tables[t].dim);
  }
  return max_dim;
}

struct Scratch {
  char* counts;
  char* rows;
  char* pieces;
  char* sums;
  char* arrays;
  int64_t bytes;

  Scratch(const Group& group, void* memory) : bytes(0) {
    auto take = [&](int64_t size) {
      char* part = static_cast<char*>(memory) + bytes;
      bytes += AlignScratch(size);
      return part;
    };
    counts = take(2 * sizeof(uint32_t));
    rows = take(MaxLongRows(group) * sizeof(LongRow));
    pieces = take(MaxPieces(group) * sizeof(LongPiece));
    sums = take(MaxPieces(group) * MaxDim(group) * sizeof(float));
    arrays = take(AlignScratch(group.num_features * sizeof(GradientsOfFeature)) +
                  AlignScratch(group.num_tables * sizeof(ReduceTask)) +
                  AlignScratch(group.num_tables * sizeof(StoreGradient<float>)) +
                  AlignScratch((group.num_tables + 1) * sizeof(int64_t)));
  }
};

// As many unique rows for a team as make it worth starting.
int32_t RowsPerTeam(int64_t num_ids, int64_t num_unique) {
  constexpr int64_t kEntriesPerTeam = 32;
  return static_cast<int32_t>(std::clamp<int64_t>(
      kEntriesPerTeam * num_unique / std::max<int64_t>(1, num_ids), 1, kEntriesPerTeam));
}

struct ReducePlan {
  std::vector<GradientsOfFeature> features;  // table by table
  std::vector<ReduceTask> tasks;
  BlockPlan blocks;
};

ReducePlan PlanReduce(const Group& group, const int64_t* num_unique, const TableGrad* grads) {
  ReducePlan plan;
  std::vector<std::vector<int64_t>> features_of(group.num_tables);
  for (int64_t f = 0; f < group.num_features; ++f) {
    // A feature without samples has no gradient, and would stand in the way of the search.
    if (group.features[f].num_samples > 0) features_of[group.features[f].table].push_back(f);
  }
  const int32_t rows_per_team = RowsPerTeam(group.batch.num_ids, num_unique[group.num_tables]);
  for (int64_t t = 0; t < group.num_tables; ++t) {
    const Table& table = group.tables[t];
    int64_t alignment = Alignment(grads[t].values);
    if (table.max_norm > 0) alignment |= Alignment(table.rows);
    ReduceTask task;
    task.num_features = static_cast<int32_t>(features_of[t].size());
    for (int64_t f : features_of[t]) {
      const Feature& feature = group.features[f];
      const int64_t stride = feature.output_stride * SizeOf(group.dtype);
      alignment |= Alignment(feature.output) | stride;
      plan.features.push_back({static_cast<const char*>(feature.output), stride,
                               static_cast<uint32_t>(feature.first_sample)});
    }
    task.feature = features_of[t].empty() ? GradientsOfFeature{}
                                          : plan.features[plan.features.size() - task.num_features];
    task.rows = static_cast<const char*>(table.rows);
    task.row_bytes = table.dim * SizeOf(group.dtype);
    task.first_unique = num_unique[t];
    task.num_unique = num_unique[t + 1] - num_unique[t];
    task.shape = RowShape::Of(table.dim, group.dtype, alignment);
    task.dim = table.dim;
    task.rows_per_team = rows_per_team;
    task.max_norm = table.max_norm;
    task.has_scales = std::any_of(features_of[t].begin(), features_of[t].end(), [&](int64_t f) {
      return group.features[f].combiner != Combiner::kSum;
    });
    const int64_t rows_per_block = kReduceThreads / task.shape.team_size() * rows_per_team;
    plan.blocks.Append((task.num_unique + rows_per_block - 1) / rows_per_block);
    plan.tasks.push_back(task);
  }
  return plan;
}

Weighting WeightingOf(const std::vector<ReduceTask>& tasks, const Batch& batch) {
  auto any = [&](auto condition) { return std::any_of(tasks.begin(), tasks.end(), condition); };
  if (any([](const ReduceTask& task) { return task.max_norm > 0; })) return Weighting::kClipping;
  const bool has_scales = any([](const ReduceTask& task) { return task.has_scales; });
  return batch.weights != nullptr || has_scales ? Weighting::kWeights : Weighting::kNone;
}

template <typename T, typename Sink>
void Launch(const ReduceArgs& args, const Sink* sinks, Weighting weighting, int64_t num_blocks,
            bool may_have_long_rows, cudaStream_t stream) {
  auto* segments_kernel = ReduceSegmentsKernel<T, Weighting::kNone, Sink>;
  auto* pieces_kernel = ReducePiecesKernel<T, Weighting::kNone>;
  if (weighting != Weighting::kNone) {
    segments_kernel = weighting == Weighting::kClipping
                          ? ReduceSegmentsKernel<T, Weighting::kClipping, Sink>
                          : ReduceSegmentsKernel<T, Weighting::kWeights, Sink>;
    pieces_kernel = ReducePiecesKernel<T, Weighting::kWeights>;
  }
  segments_kernel<<<static_cast<unsigned>(num_blocks), kReduceThreads, 0, stream>>>(args, sinks);
  if (!may_have_long_rows) return;
  // How many pieces there are, the device knows: blocks that find none end at once.
  const unsigned several_each = static_cast<unsigned>(4 * NumMultiprocessors());
  pieces_kernel<<<several_each, kReduceThreads, 0, stream>>>(args);
  AddPiecesKernel<T><<<several_each, kReduceThreads, 0, stream>>>(args, sinks);
}

template <typename T>
cudaError_t Reduce(const Group& group, const SortedRows& sorted, const int64_t* num_unique,
                   const TableGrad* grads, void* memory, cudaStream_t stream) {
  ReducePlan plan = PlanReduce(group, num_unique, grads);
  const int64_t num_blocks = plan.blocks.num_blocks();
  if (num_blocks == 0) return cudaSuccess;
  if (num_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;

  const Scratch scratch(group, memory);
  DeviceArrays arrays(scratch.arrays);
  const GradientsOfFeature* features = arrays.Add(plan.features);
  for (ReduceTask& task : plan.tasks) {
    task.features = features;
    features += task.num_features;
  }
  std::vector<StoreGradient<T>> sinks;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    sinks.push_back({grads[t].indices, static_cast<T*>(grads[t].values), group.tables[t].dim});
  }
  ReduceArgs args;
  args.tasks = arrays.Add(plan.tasks);
  args.first_blocks = arrays.Add(plan.blocks.first_blocks());
  args.num_tables = group.num_tables;
  args.sorted = sorted;
  args.weights = group.batch.weights;
  args.lists.num_rows = reinterpret_cast<uint32_t*>(scratch.counts);
  args.lists.num_pieces = args.lists.num_rows + 1;
  args.lists.rows = reinterpret_cast<LongRow*>(scratch.rows);
  args.lists.pieces = reinterpret_cast<LongPiece*>(scratch.pieces);
  args.lists.sums = reinterpret_cast<float*>(scratch.sums);
  args.lists.max_dim = MaxDim(group);
  const StoreGradient<T>* device_sinks = arrays.Add(sinks);
  if (const cudaError_t error = arrays.Send(stream)) return error;
  const cudaError_t error = cudaMemsetAsync(scratch.counts, 0, 2 * sizeof(uint32_t), stream);
  if (error != cudaSuccess) return error;

  Launch<T>(args, device_sinks, WeightingOf(plan.tasks, group.batch), num_blocks,
            MaxLongRows(group) > 0, stream);
  return cudaGetLastError();
}

}  // namespace

int64_t ReduceRowsScratchBytesCuda(const Group& group) { return Scratch(group, nullptr).bytes; }

cudaError_t ReduceRowsCuda(const Group& group, const SortedRows& sorted, const int64_t* num_unique,
                           const TableGrad* grads, void* scratch, cudaStream_t stream) {
  return ForDeviceType(group.dtype, [&](auto* type) {
    return Reduce<std::remove_pointer_t<decltype(type)>>(group, sorted, num_unique, grads, scratch,
                                                         stream);
  });
}

}  // namespace group_embedding
