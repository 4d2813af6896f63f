#include <algorithm>
#include <vector>

#include "core/descriptors.cuh"
#include "core/fault.cuh"
#include "grouping/group_ids.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPerThread = 4;  // positions and samples of a feature
constexpr int64_t kPerBlock = kThreads * kPerThread;

// One feature, and where its part of the batch begins.
struct GroupingTask {
  FeatureIds from;
  int64_t first_sample;
  int64_t first_id;
};

struct GroupingArgs {
  const GroupingTask* tasks;    // [num_features]
  const int64_t* first_blocks;  // [num_features + 1]
  int64_t num_features;
  int64_t num_samples, num_ids;  // of the batch
  int64_t* row_splits;
  int64_t* ids;
  float* weights;  // or null
  Fault* fault;
};

__device__ int64_t IdAt(const FeatureIds& feature, int64_t i) {
  switch (feature.id_type) {
    case IdType::kInt32:
      return static_cast<const int32_t*>(feature.values)[i];
    case IdType::kUInt32:
      return static_cast<const uint32_t*>(feature.values)[i];
    case IdType::kUInt64: {
      const uint64_t id = static_cast<const uint64_t*>(feature.values)[i];
      return static_cast<int64_t>(min(id, static_cast<uint64_t>(INT64_MAX)));
    }
    default:
      return static_cast<const int64_t*>(feature.values)[i];
  }
}

// The sample of position `i` of a SparseTensor, or -1 if an index is outside the dense shape.
__device__ int64_t SampleAt(const FeatureIds& feature, int64_t i) {
  const int64_t* index = static_cast<const int64_t*>(feature.partition) + i * feature.rank;
  int64_t sample = 0;
  for (int32_t axis = 0; axis < feature.rank - 1; ++axis) {
    if (index[axis] < 0 || index[axis] >= feature.sample_shape[axis]) return -1;
    sample += index[axis] * feature.sample_strides[axis];
  }
  return sample;
}

__device__ int64_t RaggedSplit(const FeatureIds& feature, const void* splits, int64_t i) {
  return feature.int32_splits ? static_cast<const int32_t*>(splits)[i]
                              : static_cast<const int64_t*>(splits)[i];
}

// Split `i` of a RaggedTensor, forced into [0, num_ids] and the first to 0; reports a wrong one.
__device__ int64_t CheckedRaggedSplit(const FeatureIds& feature, int64_t feature_index, int64_t i,
                                      Fault* fault) {
  const int64_t split = RaggedSplit(feature, feature.partition, i);
  const int64_t least = i == 0 ? 0 : RaggedSplit(feature, feature.partition, i - 1);
  const bool ends_wrong =
      (i == 0 && split != 0) || (i == feature.num_samples && split != feature.num_ids);
  if (ends_wrong || split < least || split > feature.num_ids) {
    RaiseFault(fault, FaultKind::kRowSplitsInvalid, feature_index, i, split);
  } else if (feature.weight_partition != nullptr &&
             split != RaggedSplit(feature, feature.weight_partition, i)) {
    RaiseFault(fault, FaultKind::kWeightRowsDiffer, feature_index, i, i);
  }
  return i == 0 ? 0 : min(max(split, int64_t{0}), feature.num_ids);
}

// Checks position `i` of a SparseTensor, and writes the splits of the samples that begin there: the
// sample's own, if the position is its first, and those of empty samples before it. For any
// indices, every sample up to that of the last position gets a split in [0, num_ids].
__device__ void SplitAtPosition(const FeatureIds& feature, int64_t feature_index, int64_t i,
                                int64_t first_id, int64_t* splits, Fault* fault) {
  const int64_t* index = static_cast<const int64_t*>(feature.partition) + i * feature.rank;
  const int64_t sample = SampleAt(feature, i), before = i == 0 ? -1 : SampleAt(feature, i - 1);
  if (sample < 0) {
    RaiseFault(fault, FaultKind::kRowOutOfBatch, feature_index, i, index[0]);
  } else if (sample < before) {
    RaiseFault(fault, FaultKind::kRowsUnsorted, feature_index, i, index[0]);
  }
  for (int64_t s = before + 1; s <= sample; ++s) splits[s] = first_id + i;
  if (feature.weight_partition == nullptr) return;
  const int64_t* other = static_cast<const int64_t*>(feature.weight_partition) + i * feature.rank;
  for (int32_t axis = 0; axis < feature.rank; ++axis) {
    if (index[axis] != other[axis]) {
      RaiseFault(fault, FaultKind::kWeightRowsDiffer, feature_index, i, i);
      return;
    }
  }
}

// Writes the split of a sample; for a SparseTensor, only of samples after its last position.
__device__ void SplitAtSample(const FeatureIds& feature, int64_t feature_index, int64_t sample,
                              int64_t first_id, int64_t* splits, Fault* fault) {
  if (feature.layout == Layout::kSparse) {
    const int64_t last = feature.num_ids == 0 ? -1 : SampleAt(feature, feature.num_ids - 1);
    if (sample > last) splits[sample] = first_id + feature.num_ids;
  } else if (feature.layout == Layout::kRagged) {
    splits[sample] = first_id + CheckedRaggedSplit(feature, feature_index, sample, fault);
  } else {
    splits[sample] = first_id + sample * (feature.num_ids / feature.num_samples);
  }
}

// A block works for kPerBlock positions and as many samples of one feature. A thread copies and
// checks one position at a time, and looks at one sample at a time; no thread waits for another.
__global__ void __launch_bounds__(kThreads) GroupIdsKernel(GroupingArgs args) {
  if (blockIdx.x == 0 && threadIdx.x == 0) args.row_splits[args.num_samples] = args.num_ids;
  if (args.num_features == 0) return;
  const int64_t f = FindOwner(args.first_blocks, args.num_features, blockIdx.x);
  const GroupingTask& task = args.tasks[f];
  const FeatureIds& from = task.from;
  int64_t* splits = args.row_splits + task.first_sample;
  const int64_t first = (blockIdx.x - args.first_blocks[f]) * kPerBlock + threadIdx.x;
  for (int64_t n = 0; n < kPerThread; ++n) {
    const int64_t i = first + n * kThreads;
    if (i < from.num_ids) {
      args.ids[task.first_id + i] = IdAt(from, i);
      if (args.weights != nullptr) {
        args.weights[task.first_id + i] = from.weights == nullptr ? 1.0f : from.weights[i];
      }
      if (from.layout == Layout::kSparse) {
        SplitAtPosition(from, f, i, task.first_id, splits, args.fault);
      }
    }
    if (i < from.num_samples) {
      SplitAtSample(from, f, i, task.first_id, splits, args.fault);
    } else if (i == from.num_samples && from.layout == Layout::kRagged) {
      CheckedRaggedSplit(from, f, i, args.fault);  // the last one is where the next feature begins
    }
  }
}

}  // namespace

int64_t GroupIdsScratchBytes(int64_t num_features) {
  return AlignScratch(num_features * sizeof(GroupingTask)) +
         AlignScratch((num_features + 1) * sizeof(int64_t));
}

cudaError_t GroupIdsCuda(const FeatureIds* features, int64_t num_features, bool weighted,
                         float* buffer, void* scratch, Fault* fault, cudaStream_t stream) {
  std::vector<GroupingTask> tasks;
  BlockPlan blocks;
  int64_t num_samples = 0, num_ids = 0;
  for (int64_t f = 0; f < num_features; ++f) {
    tasks.push_back({features[f], num_samples, num_ids});
    num_samples += features[f].num_samples;
    num_ids += features[f].num_ids;
    // One more than the samples, for the check of the last split.
    const int64_t items = std::max(features[f].num_ids, features[f].num_samples + 1);
    blocks.Append((items + kPerBlock - 1) / kPerBlock);
  }
  if (blocks.num_blocks() > INT32_MAX) return cudaErrorInvalidConfiguration;

  DeviceArrays arrays(scratch);
  GroupingArgs args;
  args.tasks = arrays.Add(tasks);
  args.first_blocks = arrays.Add(blocks.first_blocks());
  args.num_features = num_features;
  args.num_samples = num_samples;
  args.num_ids = num_ids;
  const BatchLayout layout = LayOutBatch(num_samples, num_ids, weighted);
  args.row_splits = reinterpret_cast<int64_t*>(buffer);
  args.ids = reinterpret_cast<int64_t*>(buffer + layout.ids);
  args.weights = weighted ? buffer + layout.weights : nullptr;
  args.fault = fault;
  if (const cudaError_t error = arrays.Send(stream)) return error;
  const int64_t num_blocks = std::max<int64_t>(blocks.num_blocks(), 1);
  GroupIdsKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace group_embedding
