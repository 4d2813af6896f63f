// What the kernels of group_lookup.cu and stored_lookup.cu share; they differ in how a row is read.
//
// A block works for one feature and for kLookupThreads / team_size runs of consecutive samples. A
// team of threads walks over the ids of its run, with several rows in flight, and writes one vector
// per sample; a thread keeps one vector (up to 16 bytes) of each row. Where a row has more than 32
// vectors, the next block takes the next 32 of the same samples. A warp holds one team or several,
// never half of one.
#pragma once

#include <algorithm>
#include <vector>

#include "core/descriptors.cuh"
#include "core/fault.cuh"
#include "core/row_format.h"
#include "core/rows.cuh"
#include "fused/combine_segments.cuh"
#include "fused/group_lookup.h"
#include "fused/sample_ids.h"

namespace group_embedding {

inline constexpr int kLookupThreads = 256;

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

// How a thread reads rows that lie in tables as they are: its vector of a row.
template <typename Wide>
struct WholeRows {
  using Vector = Wide;

  __device__ WholeRows(const LookupTask& task, uint32_t column)
      : rows(task.rows + column * sizeof(Wide)), row_bytes(task.row_bytes) {}
  __device__ const char* At(int64_t id) const { return rows + id * row_bytes; }

  const char* rows;  // the thread's vector of the table's first row
  uint32_t row_bytes;
};

// The ids of one feature as the entries of CombineSegments. Read: as WholeRows.
template <Weighting weighting, typename Read>
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
  Read read;
  bool met_bad_id = false;

  __device__ Cursor Seek(int64_t position) const {
    return {args.batch.ids + position, args.batch.weights + position};
  }
  __device__ Fetched Fetch(const Cursor& cursor, int i) const {
    const bool weighted = weighting != Weighting::kNone && args.batch.weights != nullptr;
    return {__ldg(cursor.ids + i), weighted ? __ldg(cursor.weights + i) : 1.0f};
  }
  __device__ bool HasRow(const Fetched& fetched) const { return Use(fetched) == IdUse::kRow; }
  __device__ auto Row(const Fetched& fetched) const { return read.At(fetched.id); }
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
template <typename Read>
struct LookupClip {
  using Vector = typename Read::Vector;

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
      for (int32_t c = team.lane; c < task.shape.num_vectors; c += team.size) {
        const Vector other = Vector::LoadIf(true, Read(task, c).At(id));
        for (int i = 0; i < Vector::kSize; ++i) squares += other[i] * other[i];
      }
    }
    return ClipScale(team.Sum(squares), task.max_norm);
  }
};

struct Sample {
  int64_t end;  // of its ids
};

// `block`: which of the feature's blocks this is. Vector: of the outputs; Read: of the rows.
template <typename Vector, typename Read, Weighting weighting>
__device__ void LookUpBlock(const LookupArgs& args, const LookupTask& task, int64_t feature,
                            uint32_t block) {
  const Team team(task.shape.team_bits);
  const uint32_t num_columns = task.shape.num_columns;
  const int32_t column = (block % num_columns) * team.size + team.lane;
  const bool has_column = column < task.shape.num_vectors;
  const int64_t begin =
      (int64_t{block / num_columns} * (kLookupThreads >> task.shape.team_bits) + team.index) *
      task.samples_per_team;
  const int64_t end = min(begin + task.samples_per_team, task.num_samples);
  const int num_samples = static_cast<int>(max(end - begin, int64_t{0}));

  const Batch& batch = args.batch;
  const int64_t* splits = batch.row_splits + task.first_sample + begin;
  auto split = [&](int sample) {
    return batch.row_splits == nullptr ? task.first_sample + begin + sample
                                       : batch.Bounded(__ldg(splits + sample));
  };
  const LookupClip<Read> clip{args, task, team};
  LookupSource<weighting, Read> source{args, task, Read(task, column)};
  char* output = task.output + begin * task.output_bytes + column * sizeof(Vector);
  CombineSegments<typename Read::Vector>(
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

inline RowShape LookupShape(const Table& table, const Feature& feature, DataType dtype) {
  return RowShape::Of(
      table.dim, dtype,
      Alignment(table.rows) | Alignment(feature.output) | feature.output_stride * SizeOf(dtype));
}

// Enough samples for a team to fill its flight a few times, unless that would leave the device
// short of warps.
inline int32_t SamplesPerTeam(const Group& group) {
  constexpr int64_t kIdsPerTeam = 64, kWarpsPerMultiprocessor = 128;
  int64_t num_threads = 0;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    const RowShape shape = LookupShape(group.tables[feature.table], feature, group.dtype);
    num_threads += feature.num_samples * shape.team_size() * shape.num_columns;
  }
  const int64_t enough = kWarpsPerMultiprocessor * NumMultiprocessors() * kWarpSize;
  const int64_t by_ids =
      kIdsPerTeam * group.batch.num_samples / std::max<int64_t>(1, group.batch.num_ids);
  return static_cast<int32_t>(std::clamp<int64_t>(std::min(by_ids, num_threads / enough), 1, 32));
}

struct LookupPlan {
  std::vector<LookupTask> tasks;
  BlockPlan blocks;
};

// format: of the rows. A table without `rows` has addresses in the place of ids.
inline LookupPlan PlanLookup(const Group& group, RowFormat format) {
  LookupPlan plan;
  const int32_t samples_per_team = SamplesPerTeam(group);
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    const Table& table = group.tables[feature.table];
    LookupTask task;
    task.rows = static_cast<const char*>(table.rows);
    task.output = static_cast<char*>(feature.output);
    task.num_rows = table.num_rows;
    task.row_bytes = table.rows == nullptr ? 1 : static_cast<uint32_t>(RowBytes(format, table.dim));
    task.output_bytes = feature.output_stride * SizeOf(group.dtype);
    task.first_sample = feature.first_sample;
    task.num_samples = feature.num_samples;
    task.shape = LookupShape(table, feature, group.dtype);
    task.samples_per_team = samples_per_team;
    task.max_norm = table.max_norm;
    task.combiner = feature.combiner;
    const int64_t samples_per_block = kLookupThreads / task.shape.team_size() * samples_per_team;
    plan.blocks.Append((task.num_samples + samples_per_block - 1) / samples_per_block *
                       task.shape.num_columns);
    plan.tasks.push_back(task);
  }
  return plan;
}

inline int64_t LookupLaunchBytes(int64_t num_features) {
  return AlignScratch(num_features * sizeof(LookupTask)) +
         AlignScratch((num_features + 1) * sizeof(int64_t));
}

// Launches kernel_for(null pointer of the device's type of the group). scratch: device memory of
// LookupLaunchBytes.
template <typename KernelFor>
cudaError_t LaunchLookupKernel(const Group& group, RowFormat format, void* scratch, Fault* fault,
                               cudaStream_t stream, const KernelFor& kernel_for) {
  const LookupPlan plan = PlanLookup(group, format);
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
    kernel_for(type)<<<static_cast<unsigned>(num_blocks), kLookupThreads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace group_embedding
