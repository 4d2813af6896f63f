#include <vector>

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "fused/group_lookup_grad.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // rows that a team loads before it uses the first

// One feature with its table, as the kernel needs it.
struct WeightGradTask {
  const char* rows;
  const char* gradients;
  int64_t num_rows;
  int64_t row_bytes;
  int64_t gradient_bytes;  // from one sample to the next
  int64_t first_sample;
  int64_t num_samples;
  RowShape shape;
  float max_norm;
  Combiner combiner;
};

struct WeightGradArgs {
  const WeightGradTask* tasks;  // [num_features]
  const int64_t* first_blocks;  // [num_features + 1]
  int64_t num_features;
  Batch batch;
  bool prune_negative;
  float* weight_grad;  // [num_ids]
};

__device__ float WeightOf(const Batch& batch, int64_t i) {
  return batch.weights == nullptr ? 1.0f : batch.weights[i];
}

__device__ IdUse UseOf(const WeightGradArgs& args, const WeightGradTask& task, int64_t i) {
  return UseOfId(args.batch.ids[i], WeightOf(args.batch, i), task.num_rows, task.combiner,
                 args.prune_negative);
}

// dots[k] = row . gradient and squares[k] = row . row, for entries [begin, begin + kInFlight) below
// `end`; 0 where no row is read.
template <typename Vector>
__device__ void DotRows(const WeightGradArgs& args, const WeightGradTask& task, const Team& team,
                        const Vector* gradient, int64_t begin, int64_t end,
                        float (&dots)[kInFlight], float (&squares)[kInFlight]) {
  const Vector* rows[kInFlight];
  for (int k = 0; k < kInFlight; ++k) {
    const bool reads = begin + k < end && UseOf(args, task, begin + k) == IdUse::kRow;
    rows[k] = !reads ? nullptr
                     : reinterpret_cast<const Vector*>(task.rows +
                                                       args.batch.ids[begin + k] * task.row_bytes);
    dots[k] = squares[k] = 0;
  }
  for (int32_t column = team.lane; column < task.shape.num_vectors; column += team.size) {
    const Vector g = Vector::Load(gradient + column);
    Vector x[kInFlight];
    for (int k = 0; k < kInFlight; ++k) {
      x[k] = rows[k] == nullptr ? Vector::Zeros() : Vector::Load(rows[k] + column);
    }
    for (int k = 0; k < kInFlight; ++k) {
      for (int j = 0; j < Vector::kSize; ++j) {
        dots[k] += x[k][j] * g[j];
        squares[k] += x[k][j] * x[k][j];
      }
    }
  }
  for (int k = 0; k < kInFlight; ++k) {
    dots[k] = rows[k] == nullptr ? 0.0f : dots[k];  // not NaN where the gradient is
    dots[k] = team.Sum(dots[k]);
    if (task.max_norm > 0) dots[k] *= ClipScale(team.Sum(squares[k]), task.max_norm);
  }
}

// The gradients of the weights of one sample.
template <typename Vector>
__device__ void WeightGradOfSample(const WeightGradArgs& args, const WeightGradTask& task,
                                   const Team& team, int64_t sample) {
  const Batch& batch = args.batch;
  const int64_t begin = batch.Begin(task.first_sample + sample);
  const int64_t end = batch.Begin(task.first_sample + sample + 1);
  const Vector* gradient =
      reinterpret_cast<const Vector*>(task.gradients + sample * task.gradient_bytes);
  float sum_weights = 0, sum_squares = 0, sum_dots = 0;
  for (int64_t i = begin; i < end; i += kInFlight) {
    float dots[kInFlight], squares[kInFlight];
    DotRows(args, task, team, gradient, i, end, dots, squares);
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k >= end) break;
      if (team.lane == 0) args.weight_grad[i + k] = dots[k];
      const IdUse use = UseOf(args, task, i + k);
      if (use == IdUse::kNone) continue;
      const float weight = WeightOf(batch, i + k);
      sum_weights += weight;
      sum_squares += weight * weight;
      if (use == IdUse::kRow) sum_dots += weight * dots[k];
    }
  }
  if (task.combiner == Combiner::kSum) return;
  const float scale = CombinerScale(task.combiner, sum_weights, sum_squares);
  __syncwarp(team.mask);  // the dots are there for all
  for (int64_t i = begin + team.lane; i < end; i += team.size) {
    if (UseOf(args, task, i) == IdUse::kNone) continue;
    args.weight_grad[i] =
        WeightGradient(task.combiner, WeightOf(batch, i), scale, args.weight_grad[i], sum_dots);
  }
}

// A block works for kThreads / team_size samples of one feature, a team of threads for one of them:
// all of it multiplies one id's row with the sample's output gradient, kInFlight ids at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) WeightGradKernel(WeightGradArgs args) {
  const int64_t feature = FindOwner(args.first_blocks, args.num_features, blockIdx.x);
  const WeightGradTask& task = args.tasks[feature];
  const Team team(task.shape.team_bits);
  const int64_t block = blockIdx.x - args.first_blocks[feature];
  const int64_t sample = block * (kThreads / team.size) + team.index;
  if (sample >= task.num_samples) return;
  ForVector<T>(task.shape.vector_bytes, [&](auto vector) {
    WeightGradOfSample<decltype(vector)>(args, task, team, sample);
  });
}

}  // namespace

int64_t WeightGradScratchBytesCuda(const Group& group) {
  return AlignScratch(group.num_features * sizeof(WeightGradTask)) +
         AlignScratch((group.num_features + 1) * sizeof(int64_t));
}

cudaError_t WeightGradCuda(const Group& group, float* weight_grad, void* scratch,
                           cudaStream_t stream) {
  std::vector<WeightGradTask> tasks;
  BlockPlan blocks;
  bool is_partial = false;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    if (feature.output == nullptr) {
      is_partial = true;
      continue;
    }
    const Table& table = group.tables[feature.table];
    const int64_t gradient_bytes = feature.output_stride * SizeOf(group.dtype);
    const RowShape shape = RowShape::Of(
        table.dim, group.dtype, Alignment(table.rows) | Alignment(feature.output) | gradient_bytes);
    const int64_t row_bytes = table.rows == nullptr ? 1 : table.dim * SizeOf(group.dtype);
    tasks.push_back({static_cast<const char*>(table.rows), static_cast<const char*>(feature.output),
                     table.num_rows, row_bytes, gradient_bytes, feature.first_sample,
                     feature.num_samples, shape, table.max_norm, feature.combiner});
    const int64_t samples_per_block = kThreads / shape.team_size();
    blocks.Append((feature.num_samples + samples_per_block - 1) / samples_per_block);
  }
  if (is_partial) {
    const size_t bytes = group.batch.num_ids * sizeof(float);
    if (const cudaError_t error = cudaMemsetAsync(weight_grad, 0, bytes, stream)) return error;
  }
  if (blocks.num_blocks() == 0) return cudaSuccess;
  if (blocks.num_blocks() > INT32_MAX) return cudaErrorInvalidConfiguration;
  DeviceArrays arrays(scratch);
  WeightGradArgs args;
  args.tasks = arrays.Add(tasks);
  args.first_blocks = arrays.Add(blocks.first_blocks());
  args.num_features = static_cast<int64_t>(tasks.size());
  args.batch = group.batch;
  args.prune_negative = group.invalid_ids.prune_negative;
  args.weight_grad = weight_grad;
  if (const cudaError_t error = arrays.Send(stream)) return error;
  ForDeviceType(group.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    WeightGradKernel<T><<<static_cast<unsigned>(blocks.num_blocks()), kThreads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace group_embedding
