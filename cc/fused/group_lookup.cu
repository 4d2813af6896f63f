#include <algorithm>
#include <vector>

#include "core/descriptors.cuh"
#include "core/fault.cuh"
#include "core/rows.cuh"
#include "fused/combine_segments.cuh"
#include "fused/group_lookup.h"
#include "fused/host_rows.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;

// One feature with its table, as the kernel needs it.
struct LookupTask {
  const char* rows;
  char* output;
  int64_t num_rows;
  uint32_t row_bytes;
  int64_t output_bytes;  // from one sample to the next
  int64_t first_sample;
  int64_t num_samples;
  RowShape shape;
  int32_t samples_per_team;
  float max_norm;
  Combiner combiner;
};

struct LookupArgs {
  const LookupTask* tasks;      // [num_features]
  const int64_t* first_blocks;  // [num_features + 1]
  int64_t num_features;
  Batch batch;
  InvalidIds invalid_ids;
  Fault* fault;
};

// A thread's vector of a row of float32, or of as many elements of 16 bits, as the lowest bit of
// its address says. What is not loaded is all zeros, so that neither is chosen by a branch.
template <typename Narrow, int kBytes>
struct WideOrNarrow {
  static constexpr int kSize = kBytes / sizeof(float);

  Vector<float, kBytes> wide;
  Vector<Narrow, kBytes / 2> narrow;

  __device__ float operator[](int i) const {
    return __uint_as_float(__float_as_uint(wide[i]) | __float_as_uint(narrow[i]));
  }
  __device__ static WideOrNarrow LoadIf(bool condition, const char* place) {
    const auto address = reinterpret_cast<uintptr_t>(place);
    const bool is_narrow = address & kNarrowRowBit;
    const auto* from = reinterpret_cast<const char*>(address & ~uintptr_t{kNarrowRowBit});
    return {decltype(wide)::LoadIf(condition && !is_narrow, from),
            decltype(narrow)::LoadIf(condition && is_narrow, from)};
  }
};

// How rows of vectors `Wide` are read; Narrow: in which type some of them are, or void.
template <typename Wide, typename Narrow>
struct ReadAs {
  using Type = WideOrNarrow<Narrow, static_cast<int>(sizeof(Wide))>;
};
template <typename Wide>
struct ReadAs<Wide, void> {
  using Type = Wide;
};

// The ids of one feature as the entries of CombineSegments.
template <Weighting weighting, bool has_narrow>
struct LookupSource {
  static constexpr Weighting kWeighting = weighting;
  struct Cursor {
    const int64_t* ids;
    const float* weights;
  };
  struct Fetched {
    int64_t id;
    float weight;
  };

  const LookupArgs& args;
  const LookupTask& task;
  const char* rows;    // the thread's vector of the table's first row
  uint32_t column_at;  // where that vector is in a row, in bytes
  bool met_bad_id = false;

  __device__ Cursor Seek(int64_t position) const {
    return {args.batch.ids + position, args.batch.weights + position};
  }
  __device__ Fetched Fetch(const Cursor& cursor, int i) const {
    const bool weighted = weighting != Weighting::kNone && args.batch.weights != nullptr;
    return {__ldg(cursor.ids + i), weighted ? __ldg(cursor.weights + i) : 1.0f};
  }
  __device__ bool HasRow(const Fetched& fetched) const { return Use(fetched) == IdUse::kRow; }
  __device__ const char* Row(const Fetched& fetched) const {
    if constexpr (has_narrow) {  // by address, all of them
      const uint32_t at = fetched.id & kNarrowRowBit ? column_at / 2 : column_at;
      return reinterpret_cast<const char*>(fetched.id + at);
    }
    return rows + fetched.id * task.row_bytes;
  }
  __device__ float Weight(const Fetched& fetched) const {
    return weighting == Weighting::kNone ? 1.0f : fetched.weight;
  }
  __device__ float WeightOfNone(const Fetched& fetched) {
    const bool counts = Use(fetched) == IdUse::kZeros;
    met_bad_id |= counts;
    return counts ? Weight(fetched) : 0.0f;
  }
  __device__ IdUse Use(const Fetched& fetched) const {
    return UseOfId(fetched.id, Weight(fetched), task.num_rows, task.combiner,
                   args.invalid_ids.prune_negative);
  }
};

// Finds the bad ids of samples [begin, end) of a feature again, and reports one.
__device__ __forceinline__ void ReportBadId(const LookupArgs& args, const LookupTask& task,
                                            int64_t feature, int64_t begin, int64_t end) {
  const Batch& batch = args.batch;
  for (int64_t sample = begin; sample < end; ++sample) {
    const int64_t in_batch = task.first_sample + sample;
    for (int64_t i = batch.Begin(in_batch); i < batch.Begin(in_batch + 1); ++i) {
      const float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
      if (UseOfId(batch.ids[i], weight, task.num_rows, task.combiner,
                  args.invalid_ids.prune_negative) == IdUse::kZeros) {
        RaiseFault(args.fault, FaultKind::kIdOutOfRange, feature, sample, batch.ids[i]);
        return;
      }
    }
  }
}

// Reports row splits of samples [begin, end) of a feature that fall, or lie outside of the batch: a
// thread of the team looks at every team.size-th.
__device__ __forceinline__ void ReportWrongSplits(const LookupArgs& args, const LookupTask& task,
                                                  const Team& team, int64_t feature, int64_t begin,
                                                  int64_t end) {
  const Batch& batch = args.batch;
  const int64_t* splits = batch.row_splits + task.first_sample;
  for (int64_t sample = begin + team.lane; sample < end; sample += team.size) {
    const int64_t split = __ldg(splits + sample + 1);
    if (split == batch.Bounded(split) && split >= __ldg(splits + sample)) continue;
    RaiseFault(args.fault, FaultKind::kRowSplitsInvalid, feature, sample + 1,
               split - __ldg(splits));
  }
}

// Scales rows down to max_norm. All threads of the team call it together.
template <typename Vector>
struct LookupClip {
  const LookupArgs& args;
  const LookupTask& task;
  const Team& team;

  __device__ float operator()(int64_t position, const Vector& vector) const {
    if (!(task.max_norm > 0)) return 1.0f;
    float squares = 0;
    if (task.shape.num_columns == 1) {
      for (int i = 0; i < Vector::kSize; ++i) squares += vector[i] * vector[i];
    } else {  // the thread holds one of its vectors; the norm is that of all
      const int64_t id = args.batch.ids[position];
      if (id < 0 || id >= task.num_rows) return 1.0f;
      const Vector* row = reinterpret_cast<const Vector*>(task.rows + id * task.row_bytes);
      for (int32_t c = team.lane; c < task.shape.num_vectors; c += team.size) {
        const Vector other = Vector::Load(row + c);
        for (int i = 0; i < Vector::kSize; ++i) squares += other[i] * other[i];
      }
    }
    return ClipScale(team.Sum(squares), task.max_norm);
  }
};

struct Sample {
  int64_t end;  // of its ids
};

// `block`: which of the feature's blocks this is.
template <typename Vector, Weighting weighting, typename Narrow>
__device__ void LookUpBlock(const LookupArgs& args, const LookupTask& task, int64_t feature,
                            uint32_t block) {
  const Team team(task.shape.team_bits);
  const uint32_t num_columns = task.shape.num_columns;
  const int32_t column = (block % num_columns) * team.size + team.lane;
  const bool has_column = column < task.shape.num_vectors;
  const int64_t begin =
      (int64_t{block / num_columns} * (kThreads >> task.shape.team_bits) + team.index) *
      task.samples_per_team;
  const int64_t end = min(begin + task.samples_per_team, task.num_samples);
  const int num_samples = static_cast<int>(max(end - begin, int64_t{0}));

  const Batch& batch = args.batch;
  const int64_t* splits = batch.row_splits + task.first_sample + begin;
  auto split = [&](int sample) {
    return batch.row_splits == nullptr ? task.first_sample + begin + sample
                                       : batch.Bounded(__ldg(splits + sample));
  };
  const LookupClip<Vector> clip{args, task, team};
  const uint32_t column_at = column * sizeof(Vector);
  LookupSource<weighting, !std::is_void_v<Narrow>> source{args, task, task.rows + column_at,
                                                          column_at};
  char* output = task.output + begin * task.output_bytes + column_at;
  CombineSegments<typename ReadAs<Vector, Narrow>::Type>(
      num_samples, num_samples > 0 ? split(0) : 0, has_column,
      [&](int sample) { return Sample{split(sample + 1)}; }, source, clip,
      [&](int sample, const Sample&, Combined<Vector::kSize>& combined) {
        if (!has_column) return;
        if (task.combiner != Combiner::kSum) {
          const float squares =
              weighting == Weighting::kNone ? combined.sum_weights : combined.sum_squares;
          const float scale = CombinerScale(task.combiner, combined.sum_weights, squares);
          for (float& value : combined.sum) value *= scale;
        }
        Vector::Round(combined.sum).Stream(output + sample * task.output_bytes);
      });
  // What was read is in the batch whatever the splits are: whether they were right can wait.
  if (args.fault != nullptr && batch.row_splits != nullptr && block % num_columns == 0) {
    ReportWrongSplits(args, task, team, feature, begin, end);
  }
  if (source.met_bad_id && !args.invalid_ids.read_zeros && column == 0) {
    ReportBadId(args, task, feature, begin, end);
  }
}

// A block works for one feature and for kThreads / team_size runs of consecutive samples. A team of
// threads walks over the ids of its run, with several rows in flight, and writes one vector per
// sample; a thread keeps one vector (up to 16 bytes) of each row. Where a row has more than 32
// vectors, the next block takes the next 32 of the same samples. A warp holds one team or several,
// never half of one.
template <typename T, Weighting weighting, typename Narrow = void>
__global__ void __launch_bounds__(kThreads, BlocksPerMultiprocessor(weighting))
    GroupLookupKernel(LookupArgs args) {
  const int64_t feature = FindOwner(args.first_blocks, args.num_features, blockIdx.x);
  const LookupTask task = args.tasks[feature];
  const uint32_t block = blockIdx.x - static_cast<uint32_t>(args.first_blocks[feature]);
  ForVector<T>(task.shape.vector_bytes, [&](auto vector) {
    LookUpBlock<decltype(vector), weighting, Narrow>(args, task, feature, block);
  });
}

RowShape ShapeOf(const Table& table, const Feature& feature, DataType dtype) {
  return RowShape::Of(
      table.dim, dtype,
      Alignment(table.rows) | Alignment(feature.output) | feature.output_stride * SizeOf(dtype));
}

// Enough samples for a team to fill its flight a few times, unless that would leave the device
// short of warps.
int32_t SamplesPerTeam(const Group& group) {
  constexpr int64_t kIdsPerTeam = 64, kWarpsPerMultiprocessor = 128;
  int64_t num_threads = 0;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    const RowShape shape = ShapeOf(group.tables[feature.table], feature, group.dtype);
    num_threads += feature.num_samples * shape.team_size() * shape.num_columns;
  }
  const int64_t enough = kWarpsPerMultiprocessor * NumMultiprocessors() * kWarpSize;
  const int64_t by_ids =
      kIdsPerTeam * group.batch.num_samples / std::max<int64_t>(1, group.batch.num_ids);
  return static_cast<int32_t>(std::clamp<int64_t>(std::min(by_ids, num_threads / enough), 1, 32));
}

template <typename T>
auto KernelFor(const Group& group, std::optional<DataType> narrow) {
  if constexpr (std::is_same_v<T, float>) {
    constexpr Weighting kNone = Weighting::kNone;
    if (narrow == DataType::kFloat16) return GroupLookupKernel<T, kNone, __half>;
    if (narrow == DataType::kBFloat16) return GroupLookupKernel<T, kNone, __nv_bfloat16>;
  }
  const bool clips = std::any_of(group.tables, group.tables + group.num_tables,
                                 [](const Table& table) { return table.max_norm > 0; });
  return clips                            ? GroupLookupKernel<T, Weighting::kClipping>
         : group.batch.weights == nullptr ? GroupLookupKernel<T, Weighting::kNone>
                                          : GroupLookupKernel<T, Weighting::kWeights>;
}

struct LookupPlan {
  std::vector<LookupTask> tasks;
  BlockPlan blocks;
};

LookupPlan PlanLookup(const Group& group) {
  LookupPlan plan;
  const int32_t samples_per_team = SamplesPerTeam(group);
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    const Table& table = group.tables[feature.table];
    LookupTask task;
    task.rows = static_cast<const char*>(table.rows);
    task.output = static_cast<char*>(feature.output);
    task.num_rows = table.num_rows;
    task.row_bytes =
        table.rows == nullptr ? 1 : static_cast<uint32_t>(table.dim * SizeOf(group.dtype));
    task.output_bytes = feature.output_stride * SizeOf(group.dtype);
    task.first_sample = feature.first_sample;
    task.num_samples = feature.num_samples;
    task.shape = ShapeOf(table, feature, group.dtype);
    task.samples_per_team = samples_per_team;
    task.max_norm = table.max_norm;
    task.combiner = feature.combiner;
    const int64_t samples_per_block = kThreads / task.shape.team_size() * samples_per_team;
    plan.blocks.Append((task.num_samples + samples_per_block - 1) / samples_per_block *
                       task.shape.num_columns);
    plan.tasks.push_back(task);
  }
  return plan;
}

int64_t LaunchBytes(int64_t num_features) {
  return AlignScratch(num_features * sizeof(LookupTask)) +
         AlignScratch((num_features + 1) * sizeof(int64_t));
}

cudaError_t LaunchLookup(const Group& group, void* scratch, Fault* fault, cudaStream_t stream,
                         std::optional<DataType> narrow) {
  const LookupPlan plan = PlanLookup(group);
  const int64_t num_blocks = plan.blocks.num_blocks();
  if (num_blocks == 0) return cudaSuccess;
  if (num_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;

  DeviceArrays arrays(scratch);
  LookupArgs args;
  args.tasks = arrays.Add(plan.tasks);
  args.first_blocks = arrays.Add(plan.blocks.first_blocks());
  args.num_features = group.num_features;
  args.batch = group.batch;
  args.invalid_ids = group.invalid_ids;
  args.fault = fault;
  if (const cudaError_t error = arrays.Send(stream)) return error;

  ForDeviceType(group.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    KernelFor<T>(group, narrow)<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace

int64_t GroupLookupScratchBytes(const Group& group) {
  return LaunchBytes(group.num_features) +
         (FetchesHostRows(group) ? FetchHostRowsScratchBytes(group) : 0);
}

cudaError_t GroupLookupCuda(const Group& group, void* scratch, Fault* fault, cudaStream_t stream,
                            std::optional<DataType> narrow) {
  if (narrow || !FetchesHostRows(group)) {
    return LaunchLookup(group, scratch, fault, stream, narrow);
  }
  char* fetched = static_cast<char*>(scratch) + LaunchBytes(group.num_features);
  std::vector<Table> tables;
  Group by_address;
  const cudaError_t error = FetchHostRowsCuda(group, fetched, fault, &tables, &by_address, stream);
  if (error != cudaSuccess) return error;
  return LaunchLookup(by_address, scratch, /*fault=*/nullptr, stream, std::nullopt);
}

}  // namespace group_embedding
