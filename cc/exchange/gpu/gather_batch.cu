#include <algorithm>
#include <numeric>
#include <string>

#include "core/descriptors.cuh"
#include "core/device_buffer.h"
#include "core/fault.cuh"
#include "exchange/gpu/gather_batch.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

struct CheckedFeature {
  int64_t first_sample;
  int64_t num_rows;  // of the whole table
  Combiner combiner;
};

// A warp checks the ids of one sample after another.
__global__ void __launch_bounds__(kThreads)
    CheckBatchKernel(const Batch batch, const InvalidIds invalid_ids,
                     const CheckedFeature* features, const int64_t* first_samples,
                     int64_t num_features, Fault* fault) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kWarps;
  for (int64_t sample = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
       sample < batch.num_samples; sample += num_warps) {
    const int64_t f = FindOwner(first_samples, num_features, sample);
    const CheckedFeature feature = features[f];
    const int64_t begin = __ldg(batch.row_splits + sample),
                  end = __ldg(batch.row_splits + sample + 1);
    if (begin != batch.Bounded(begin) || end != batch.Bounded(end) || end < begin) {
      if (lane == 0) {
        RaiseFault(fault, FaultKind::kRowSplitsInvalid, f, sample + 1 - feature.first_sample,
                   end - __ldg(batch.row_splits + feature.first_sample));
      }
      continue;
    }
    if (invalid_ids.read_zeros) continue;
    for (int64_t i = begin + lane; i < end; i += kWarpSize) {
      const float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
      if (UseOfId(batch.ids[i], weight, feature.num_rows, feature.combiner,
                  invalid_ids.prune_negative) == IdUse::kZeros) {
        RaiseFault(fault, FaultKind::kIdOutOfRange, f, sample - feature.first_sample, batch.ids[i]);
      }
    }
  }
}

// A thread writes the count before one feature's samples or ids, as one rank gets it.
__global__ void __launch_bounds__(kThreads)
    CountFeaturesKernel(const Batch batch, const int64_t* first_samples, int64_t num_features,
                        int num_ranks, int64_t* counts) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, words = 2 * num_features;
  if (i > num_ranks * words) return;
  const int64_t all = batch.num_samples + batch.num_ids, word = i % words;
  const int64_t of_rank = word < num_features
                              ? first_samples[word]
                              : batch.num_samples + batch.Begin(first_samples[word - num_features]);
  counts[i] = i / words * all + of_rank;
}

// The samples of one feature of one rank: where they arrived, and where they go.
struct Segment {
  int64_t num_samples, num_ids;
  int64_t from_split, from_id;  // in the arrays of all ranks
  int64_t first_id;             // of the feature, in its rank's batch
  int64_t to_sample, to_id;
  int64_t num_rows;  // of the whole table, or ServedFeature::kAllHere
  Combiner combiner;
};

// The local row of an id of a table of which this rank has some rows; an id that names none of them
// lies outside the table, whose rows it adds nothing to.
__device__ int64_t LocalRow(const Segment& segment, int64_t id, float weight, int64_t rank,
                            int64_t num_ranks) {
  const bool is_row = UseOfId(id, weight, segment.num_rows, segment.combiner,
                              /*prune_negative=*/true) == IdUse::kRow;
  return is_row && id % num_ranks == rank ? id / num_ranks : INT64_MAX;
}

struct PickArgs {
  const Segment* segments;
  const int64_t* first_blocks;
  int64_t num_segments;
  const int64_t *splits, *ids;  // of all ranks
  const float* weights;         // of all ranks, or null
  int64_t *to_splits, *to_ids;
  float* to_weights;
  int64_t rank, num_ranks;
};

constexpr int64_t kOfBlock = 4 * kThreads;  // items that a block copies

// Copies segments' ids, weights and row splits.
__global__ void __launch_bounds__(kThreads) PickSegmentsKernel(const PickArgs args) {
  const int64_t s = FindOwner(args.first_blocks, args.num_segments, blockIdx.x);
  const Segment segment = args.segments[s];
  const int64_t begin = (int64_t{blockIdx.x} - args.first_blocks[s]) * kOfBlock;
  for (int64_t i = begin + threadIdx.x; i < begin + kOfBlock; i += kThreads) {
    if (i < segment.num_ids) {
      const int64_t id = args.ids[segment.from_id + i];
      const float weight = args.weights == nullptr ? 1.0f : args.weights[segment.from_id + i];
      args.to_ids[segment.to_id + i] =
          segment.num_rows == ServedFeature::kAllHere
              ? id
              : LocalRow(segment, id, weight, args.rank, args.num_ranks);
      if (args.weights != nullptr) args.to_weights[segment.to_id + i] = weight;
    }
    // The end of each sample: its begin is the end of the one before.
    if (i < segment.num_samples) {
      const int64_t end = args.splits[segment.from_split + i + 1] - segment.first_id;
      args.to_splits[segment.to_sample + i + 1] =
          segment.to_id + min(max(end, int64_t{0}), segment.num_ids);
    }
  }
}

// A warp writes the factor of one sample after another.
__global__ void __launch_bounds__(kThreads)
    CombinerFactorsKernel(const Batch batch, const InvalidIds invalid_ids,
                          const CheckedFeature* features, const int64_t* first_samples,
                          int64_t num_features, float* factors) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kWarps;
  for (int64_t sample = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
       sample < batch.num_samples; sample += num_warps) {
    const CheckedFeature feature = features[FindOwner(first_samples, num_features, sample)];
    float sum = 0, squares = 0;
    for (int64_t i = batch.Begin(sample) + lane; i < batch.Begin(sample + 1); i += kWarpSize) {
      const float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
      if (UseOfId(batch.ids[i], weight, feature.num_rows, feature.combiner,
                  invalid_ids.prune_negative) == IdUse::kNone) {
        continue;
      }
      sum += weight;
      squares += weight * weight;
    }
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, offset);
      squares += __shfl_xor_sync(kFullWarp, squares, offset);
    }
    if (lane == 0) factors[sample] = CombinerScale(feature.combiner, sum, squares);
  }
}

// A warp completes the gradients of one sample's weights after another. Features that are not added
// have no rows here.
__global__ void __launch_bounds__(kThreads)
    FinishWeightGradientsKernel(const Batch batch, const InvalidIds invalid_ids,
                                const CheckedFeature* features, const int64_t* first_samples,
                                int64_t num_features, const float* factors, float* weight_grad) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kWarps;
  for (int64_t sample = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
       sample < batch.num_samples; sample += num_warps) {
    const CheckedFeature feature = features[FindOwner(first_samples, num_features, sample)];
    if (feature.num_rows == kNotAdded) continue;
    const int64_t begin = batch.Begin(sample), end = batch.Begin(sample + 1);
    float sum_dots = 0;  // of products that have the factor
    for (int64_t i = begin + lane; i < end; i += kWarpSize) {
      sum_dots += batch.weights[i] * weight_grad[i];
    }
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      sum_dots += __shfl_xor_sync(kFullWarp, sum_dots, offset);
    }
    const float factor = factors[sample];
    for (int64_t i = begin + lane; i < end; i += kWarpSize) {
      const bool counts = UseOfId(batch.ids[i], batch.weights[i], feature.num_rows,
                                  feature.combiner, invalid_ids.prune_negative) != IdUse::kNone;
      // WeightGradient has the dot products, of which these are `factor` times as large.
      weight_grad[i] = counts && factor != 0
                           ? WeightGradient(feature.combiner, batch.weights[i], factor,
                                            weight_grad[i] / factor, sum_dots / factor)
                           : 0.0f;
    }
  }
}

std::vector<int64_t> FirstSamples(const Group& group) {
  std::vector<int64_t> first;
  for (int64_t f = 0; f < group.num_features; ++f) first.push_back(group.features[f].first_sample);
  return first;
}

// Sends what the kernels above need of features, and launches a warp for each sample.
template <typename Launch>
cudaError_t ForSamples(const Group& group, const std::vector<int64_t>& num_rows, void* scratch,
                       cudaStream_t stream, const Launch& launch) {
  if (group.batch.num_samples == 0) return cudaSuccess;
  std::vector<CheckedFeature> features;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    features.push_back({feature.first_sample, num_rows[feature.table], feature.combiner});
  }
  DeviceArrays arrays(scratch);
  const int64_t* first_samples = arrays.Add(FirstSamples(group));
  const CheckedFeature* checked = arrays.Add(features);
  const cudaError_t sent = arrays.Send(stream);
  if (sent != cudaSuccess) return sent;
  const int64_t num_blocks =
      std::min((group.batch.num_samples + kWarps - 1) / kWarps, 16 * NumMultiprocessors());
  launch(static_cast<unsigned>(num_blocks), checked, first_samples);
  return cudaGetLastError();
}

}  // namespace

int64_t CheckBatchScratchBytes(int64_t num_features) {
  return AlignScratch(num_features * sizeof(CheckedFeature)) + AlignScratch(num_features * 8);
}

cudaError_t CheckBatchCuda(const Group& group, const std::vector<int64_t>& num_rows, void* scratch,
                           Fault* fault, cudaStream_t stream) {
  return ForSamples(group, num_rows, scratch, stream,
                    [&](unsigned blocks, const CheckedFeature* features, const int64_t* first) {
                      CheckBatchKernel<<<blocks, kThreads, 0, stream>>>(
                          group.batch, group.invalid_ids, features, first, group.num_features,
                          fault);
                    });
}

cudaError_t CombinerFactorsCuda(const Group& group, const std::vector<int64_t>& num_rows,
                                void* scratch, float* factors, cudaStream_t stream) {
  return ForSamples(group, num_rows, scratch, stream,
                    [&](unsigned blocks, const CheckedFeature* features, const int64_t* first) {
                      CombinerFactorsKernel<<<blocks, kThreads, 0, stream>>>(
                          group.batch, group.invalid_ids, features, first, group.num_features,
                          factors);
                    });
}

cudaError_t FinishWeightGradientsCuda(const Group& group, const std::vector<int64_t>& num_rows,
                                      const float* factors, void* scratch, float* weight_grad,
                                      cudaStream_t stream) {
  return ForSamples(group, num_rows, scratch, stream,
                    [&](unsigned blocks, const CheckedFeature* features, const int64_t* first) {
                      FinishWeightGradientsKernel<<<blocks, kThreads, 0, stream>>>(
                          group.batch, group.invalid_ids, features, first, group.num_features,
                          factors, weight_grad);
                    });
}

cudaError_t CountFeaturesCuda(const Group& group, int num_ranks, void* scratch, int64_t* counts,
                              cudaStream_t stream) {
  DeviceArrays arrays(scratch);
  const int64_t* first_samples = arrays.Add(FirstSamples(group));
  const cudaError_t sent = arrays.Send(stream);
  if (sent != cudaSuccess) return sent;
  const int64_t num_blocks = 2 * num_ranks * group.num_features / kThreads + 1;
  CountFeaturesKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(
      group.batch, first_samples, group.num_features, num_ranks, counts);
  return cudaGetLastError();
}

GatheredBatch::GatheredBatch(const std::vector<FeatureSize>& sizes,
                             const std::vector<ServedFeature>& served)
    : sizes_(sizes),
      served_(served),
      num_features_(static_cast<int64_t>(served.size())),
      kept_(sizes) {
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (!served[i % num_features_].is_served) kept_[i] = {};
    num_samples_ += kept_[i].num_samples;
    num_ids_ += kept_[i].num_ids;
  }
}

void GatheredBatch::Gather(const Batch& own, const std::vector<Combiner>& combiners,
                           Communicator* communicator, const NamedMemory& memory,
                           const Batch& gathered, cudaStream_t stream) const {
  const int num_ranks = communicator->num_ranks();
  std::vector<Segment> segments;
  BlockPlan plan;
  std::vector<int64_t> split_bytes, id_bytes, weight_bytes;
  int64_t from_split = 0, from_id = 0, to_sample = 0, to_id = 0;
  for (int n = 0; n < num_ranks; ++n) {
    int64_t num_samples = 0, num_ids = 0;  // of the rank
    for (int64_t f = 0; f < num_features_; ++f) {
      const FeatureSize &size = sizes_[n * num_features_ + f], &kept = kept_[n * num_features_ + f];
      if (kept.num_samples > 0) {
        segments.push_back({kept.num_samples, kept.num_ids, from_split + num_samples,
                            from_id + num_ids, num_ids, to_sample, to_id, served_[f].num_rows,
                            combiners[f]});
        plan.Append((std::max(kept.num_samples, kept.num_ids) + kOfBlock - 1) / kOfBlock);
      }
      num_samples += size.num_samples;
      num_ids += size.num_ids;
      to_sample += kept.num_samples;
      to_id += kept.num_ids;
    }
    split_bytes.push_back(8 * (num_samples + 1));
    id_bytes.push_back(8 * num_ids);
    weight_bytes.push_back(4 * num_ids);
    from_split += num_samples + 1;
    from_id += num_ids;
  }
  const auto gather = [&](const char* name, const void* send, const std::vector<int64_t>& bytes) {
    communicator->CountSent(std::vector<int64_t>(num_ranks, bytes[communicator->rank()]));
    void* received =
        memory.on_device(name, std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
    Require(
        communicator->AllGather(send, bytes[communicator->rank()], received, bytes.data(), stream));
    return received;
  };
  const auto* splits = static_cast<int64_t*>(gather("all_splits", own.row_splits, split_bytes));
  const auto* ids = static_cast<int64_t*>(gather("all_ids", own.ids, id_bytes));
  const auto* weights = own.weights == nullptr
                            ? nullptr
                            : static_cast<float*>(gather("all_weights", own.weights, weight_bytes));

  DeviceArrays needed(nullptr);
  needed.Add(segments);
  needed.Add(plan.first_blocks());
  DeviceArrays arrays(memory.on_device("segments", needed.size()));
  PickArgs args = {};
  args.segments = arrays.Add(segments);
  args.first_blocks = arrays.Add(plan.first_blocks());
  RequireCuda(arrays.Send(stream));
  args.num_segments = static_cast<int64_t>(segments.size());
  args.splits = splits;
  args.ids = ids;
  args.weights = weights;
  args.to_splits = const_cast<int64_t*>(gathered.row_splits);
  args.to_ids = const_cast<int64_t*>(gathered.ids);
  args.to_weights = const_cast<float*>(gathered.weights);
  args.rank = communicator->rank();
  args.num_ranks = num_ranks;
  RequireCuda(cudaMemsetAsync(args.to_splits, 0, sizeof(int64_t), stream));
  if (plan.num_blocks() > 0) {
    PickSegmentsKernel<<<static_cast<unsigned>(plan.num_blocks()), kThreads, 0, stream>>>(args);
    RequireCuda(cudaGetLastError());
  }
}

}  // namespace group_embedding
