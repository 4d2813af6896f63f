// SortRowsCuda: every looked-up id becomes a key, its row counted over all tables, and a radix sort
// of the keys' significant bits, which is stable, brings the samples of each row together in order.
//
// The sort goes back and forth between two buffers of keys and two of positions, 16 bytes per id.
// What comes after finds room in the two that the sort does not end in.
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <vector>

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "fused/group_lookup_grad.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;

// The key of an id without a gradient. Of its bits the sort sees as many as hold the number of all
// rows, and all ones in those is above every row.
template <typename Key>
constexpr Key kNoRow = static_cast<Key>(-1);

// One feature with its table, as the kernels need it.
struct KeyTask {
  int64_t first_key;  // of the table
  int64_t num_rows;
  int64_t first_sample;
  int64_t num_samples;
  Combiner combiner;
};

struct KeyArgs {
  const KeyTask* tasks;         // [num_features]
  const int64_t* first_blocks;  // [num_features + 1]
  int64_t num_features;
  Batch batch;
  bool prune_negative;
  int32_t team_bits;    // see Team
  void* keys;           // [num_ids]
  uint32_t* positions;  // [num_ids], or without weights the sample of each
  float* scales;        // [num_samples]
};

__device__ float WeightOf(const Batch& batch, int64_t i) {
  return batch.weights == nullptr ? 1.0f : batch.weights[i];
}

// Calls `body(task, sample of the batch, team)` in the threads of a team for its sample. A block
// works for one sample per team of one feature; a warp holds one team or several.
template <typename Body>
__device__ void ForSampleOfTeam(const KeyArgs& args, Body&& body) {
  const int64_t feature = FindOwner(args.first_blocks, args.num_features, blockIdx.x);
  const KeyTask& task = args.tasks[feature];
  const Team team(args.team_bits);
  const int64_t block = blockIdx.x - args.first_blocks[feature];
  const int64_t sample = block * (kThreads >> args.team_bits) + team.index;
  if (sample < task.num_samples) body(task, task.first_sample + sample, team);
}

// A team writes the keys of one sample, a thread every team.size-th.
template <typename Key>
__global__ void __launch_bounds__(kThreads) WriteKeysKernel(KeyArgs args) {
  ForSampleOfTeam(args, [&](const KeyTask& task, int64_t sample, const Team& team) {
    const Batch& batch = args.batch;
    const int64_t end = batch.Begin(sample + 1);
    for (int64_t i = batch.Begin(sample) + team.lane; i < end; i += team.size) {
      const int64_t id = batch.ids[i];
      const IdUse use =
          UseOfId(id, WeightOf(batch, i), task.num_rows, task.combiner, args.prune_negative);
      static_cast<Key*>(args.keys)[i] =
          use == IdUse::kRow ? static_cast<Key>(task.first_key + id) : kNoRow<Key>;
      args.positions[i] = static_cast<uint32_t>(batch.weights == nullptr ? sample : i);
    }
  });
}

// A team finds the scale of one sample.
__global__ void __launch_bounds__(kThreads) WriteScalesKernel(KeyArgs args) {
  ForSampleOfTeam(args, [&](const KeyTask& task, int64_t sample, const Team& team) {
    const Batch& batch = args.batch;
    const int64_t end = batch.Begin(sample + 1);
    float sum_weights = 0, sum_squares = 0;
    for (int64_t i = batch.Begin(sample) + team.lane; i < end; i += team.size) {
      const float weight = WeightOf(batch, i);
      const IdUse use =
          UseOfId(batch.ids[i], weight, task.num_rows, task.combiner, args.prune_negative);
      if (use == IdUse::kNone) continue;
      sum_weights += weight;
      sum_squares += weight * weight;
    }
    const float scale = CombinerScale(task.combiner, team.Sum(sum_weights), team.Sum(sum_squares));
    if (team.lane == 0) args.scales[sample] = scale;
  });
}

struct FactorArgs {
  Batch batch;
  const float* scales;  // [num_samples]
  // [num_ids]. Without weights `samples` is there; with weights `factors` holds positions first.
  uint32_t* samples;
  float* factors;
};

// A thread finds what one sorted entry's output gradient is multiplied by, and where the batch has
// weights first the sample of its position.
__global__ void __launch_bounds__(kThreads) WriteFactorsKernel(FactorArgs args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const Batch& batch = args.batch;
  if (at >= batch.num_ids) return;
  if (batch.weights == nullptr) {
    args.factors[at] = args.scales[args.samples[at]];
    return;
  }
  const int64_t position = __float_as_uint(args.factors[at]);
  int64_t begin = 0, end = batch.num_samples;
  while (end - begin > 1) {
    const int64_t middle = (begin + end) / 2;
    (batch.Begin(middle) <= position ? begin : end) = middle;
  }
  args.samples[at] = static_cast<uint32_t>(begin);
  args.factors[at] = batch.weights[position] * args.scales[begin];
}

// Whether entry `i` is the first of its key.
template <typename Key>
struct StartsSegment {
  const Key* keys;
  __device__ bool operator()(uint32_t i) const { return i == 0 || keys[i] != keys[i - 1]; }
};

struct UniqueArgs {
  const int64_t* first_keys;  // [num_tables]
  int64_t num_tables;
  const void* keys;  // [num_ids], sorted
  int64_t num_ids;
  const int64_t* num_starts;  // [1]
  uint32_t* segments;         // [num_ids + 1], of which the starts are there
  int64_t* num_unique;        // [num_tables + 1]
};

// A thread looks at one unique row: where a table's rows begin it counts those before them. The
// entries of kNoRow, after all rows, start a segment too: there the last row's entries end.
template <typename Key>
__global__ void __launch_bounds__(kThreads) CountRowsKernel(UniqueArgs args) {
  const Key* keys = static_cast<const Key*>(args.keys);
  const int64_t num_starts = *args.num_starts;
  const int64_t u = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (u > num_starts) return;
  auto key_of = [&](int64_t at) { return at < num_starts ? keys[args.segments[at]] : kNoRow<Key>; };
  auto table_of = [&](Key key) {  // the last that begins at or before the key
    int64_t begin = 0, end = args.num_tables;
    while (end - begin > 1) {
      const int64_t middle = (begin + end) / 2;
      (static_cast<Key>(args.first_keys[middle]) <= key ? begin : end) = middle;
    }
    return begin;
  };

  const Key key = key_of(u), before = u == 0 ? Key{0} : key_of(u - 1);
  if (before == kNoRow<Key>) return;
  int64_t table = args.num_tables;
  if (key != kNoRow<Key>) {
    table = table_of(key);
    if (u > 0 && before >= static_cast<Key>(args.first_keys[table])) return;
  } else if (u == num_starts) {
    args.segments[u] = static_cast<uint32_t>(args.num_ids);
  }
  for (int64_t t = u == 0 ? 0 : table_of(before) + 1; t <= table; ++t) args.num_unique[t] = u;
}

// The parts of the workspace.
struct Workspace {
  char *keys[2], *positions[2];
  char* scales;  // null where they go into a buffer of the sort's
  int64_t* num_unique;
  int64_t* num_starts;
  char* arrays;
  char* cub;  // afterwards SortedRows::spare_rows
  size_t cub_bytes;
  int64_t bytes;
};

bool NeedsWideKeys(const Group& group) {
  int64_t num_rows = 0;
  for (int64_t t = 0; t < group.num_tables; ++t) num_rows += group.tables[t].num_rows;
  return num_rows >= int64_t{0xFFFFFFFF};
}

int SignificantBits(int64_t value) {
  int bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

// 4-byte words of a buffer of keys, which also holds [num_ids + 2] segments and what else
// SortedRows::segments says.
template <typename Key>
int64_t SpareWords(int64_t num_ids) {
  return num_ids * static_cast<int64_t>(sizeof(Key) / 4) + 16;
}

bool HasFactors(const Group& group) {
  return group.batch.weights != nullptr ||
         std::any_of(group.features, group.features + group.num_features,
                     [](const Feature& feature) { return feature.combiner != Combiner::kSum; });
}

template <typename Key>
cudaError_t LayOut(const Group& group, void* memory, Workspace* w) {
  const uint32_t num_ids = static_cast<uint32_t>(group.batch.num_ids);
  cub::DoubleBuffer<Key> keys;
  cub::DoubleBuffer<uint32_t> positions;
  size_t sort_bytes = 0, select_bytes = 0;
  cudaError_t error =
      cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, keys, positions, num_ids);
  if (error != cudaSuccess) return error;
  error = cub::DeviceSelect::If(nullptr, select_bytes, thrust::counting_iterator<uint32_t>(0),
                                static_cast<uint32_t*>(nullptr), static_cast<int64_t*>(nullptr),
                                static_cast<int64_t>(num_ids), StartsSegment<Key>{nullptr});
  if (error != cudaSuccess) return error;
  w->cub_bytes = std::max({sort_bytes, select_bytes, size_t{num_ids} / kMinPieceEntries * 16});

  int64_t at = 0;
  auto take = [&](int64_t bytes) {
    char* part = static_cast<char*>(memory) + at;
    at += AlignScratch(bytes);
    return part;
  };
  for (char*& buffer : w->keys) buffer = take(SpareWords<Key>(num_ids) * 4);
  for (char*& buffer : w->positions) buffer = take(int64_t{num_ids} * 4);
  const bool own_scales = HasFactors(group) && group.batch.num_samples > num_ids;
  w->scales = own_scales ? take(group.batch.num_samples * 4) : nullptr;
  w->num_unique = reinterpret_cast<int64_t*>(take((group.num_tables + 1) * 8));
  w->num_starts = reinterpret_cast<int64_t*>(take(8));
  w->arrays = take(AlignScratch(group.num_features * sizeof(KeyTask)) +
                   AlignScratch((group.num_features + 1) * 8) + AlignScratch(group.num_tables * 8));
  w->cub = take(static_cast<int64_t>(w->cub_bytes));
  w->bytes = at;
  return cudaSuccess;
}

// One to four ids of a sample for a thread, on average.
int32_t TeamBits(const Batch& batch) {
  int32_t bits = 0;
  while ((1 << bits) < kWarpSize && (int64_t{4} << bits) * batch.num_samples < batch.num_ids) {
    ++bits;
  }
  return bits;
}

// What the kernels that go over samples need, and how many blocks they have.
struct SamplePlan {
  std::vector<KeyTask> tasks;
  BlockPlan blocks;
  std::vector<int64_t> first_keys;  // [num_tables + 1]
};

SamplePlan PlanSamples(const Group& group, int32_t team_bits) {
  SamplePlan plan;
  plan.first_keys = {0};
  for (int64_t t = 0; t < group.num_tables; ++t) {
    plan.first_keys.push_back(plan.first_keys.back() + group.tables[t].num_rows);
  }
  const int64_t samples_per_block = kThreads >> team_bits;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    // Of a feature without gradient no id is a row.
    const int64_t num_rows = feature.output == nullptr ? 0 : group.tables[feature.table].num_rows;
    plan.tasks.push_back({plan.first_keys[feature.table], num_rows, feature.first_sample,
                          feature.num_samples, feature.combiner});
    plan.blocks.Append((feature.num_samples + samples_per_block - 1) / samples_per_block);
  }
  return plan;
}

// Finds samples and factors of the sorted entries; `positions` and `other` are the sort's buffers.
cudaError_t WriteFactors(const Group& group, KeyArgs args, unsigned num_blocks, float* scales,
                         uint32_t* positions, uint32_t* other, SortedRows* sorted,
                         cudaStream_t stream) {
  sorted->samples = positions;
  sorted->factors = nullptr;
  if (!HasFactors(group)) return cudaSuccess;
  const bool weighted = group.batch.weights != nullptr;
  args.scales = scales;
  if (num_blocks > 0) WriteScalesKernel<<<num_blocks, kThreads, 0, stream>>>(args);
  FactorArgs factor_args{group.batch, scales, weighted ? other : positions,
                         reinterpret_cast<float*>(weighted ? positions : other)};
  const unsigned factor_blocks =
      static_cast<unsigned>((group.batch.num_ids + kThreads - 1) / kThreads);
  WriteFactorsKernel<<<factor_blocks, kThreads, 0, stream>>>(factor_args);
  sorted->samples = factor_args.samples;
  sorted->factors = factor_args.factors;
  return cudaGetLastError();
}

template <typename Key>
cudaError_t Sort(const Group& group, void* workspace, SortedRows* sorted, cudaStream_t stream) {
  Workspace w;
  if (const cudaError_t error = LayOut<Key>(group, workspace, &w)) return error;
  const int64_t num_ids = group.batch.num_ids;
  *sorted = {};
  sorted->num_unique = w.num_unique;
  if (num_ids == 0) {
    return cudaMemsetAsync(w.num_unique, 0, (group.num_tables + 1) * sizeof(int64_t), stream);
  }

  KeyArgs key_args;
  key_args.team_bits = TeamBits(group.batch);
  SamplePlan plan = PlanSamples(group, key_args.team_bits);
  const int64_t num_rows = plan.first_keys.back();
  plan.first_keys.pop_back();
  if (plan.blocks.num_blocks() > INT32_MAX) return cudaErrorInvalidConfiguration;
  const unsigned num_blocks = static_cast<unsigned>(plan.blocks.num_blocks());
  DeviceArrays arrays(w.arrays);
  key_args.tasks = arrays.Add(plan.tasks);
  key_args.first_blocks = arrays.Add(plan.blocks.first_blocks());
  key_args.num_features = group.num_features;
  key_args.batch = group.batch;
  key_args.prune_negative = group.invalid_ids.prune_negative;
  key_args.keys = w.keys[0];
  key_args.positions = reinterpret_cast<uint32_t*>(w.positions[0]);
  key_args.scales = nullptr;
  const int64_t* first_keys = arrays.Add(plan.first_keys);
  if (const cudaError_t error = arrays.Send(stream)) return error;
  // After a fault in the row splits there may be positions that no sample covers: they have no row.
  cudaError_t error = cudaMemsetAsync(w.keys[0], 0xFF, num_ids * sizeof(Key), stream);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(w.positions[0], 0, num_ids * sizeof(uint32_t), stream);
  }
  if (error != cudaSuccess) return error;
  if (num_blocks > 0) WriteKeysKernel<Key><<<num_blocks, kThreads, 0, stream>>>(key_args);
  if ((error = cudaGetLastError()) != cudaSuccess) return error;

  cub::DoubleBuffer<Key> keys(reinterpret_cast<Key*>(w.keys[0]), reinterpret_cast<Key*>(w.keys[1]));
  cub::DoubleBuffer<uint32_t> positions(reinterpret_cast<uint32_t*>(w.positions[0]),
                                        reinterpret_cast<uint32_t*>(w.positions[1]));
  error = cub::DeviceRadixSort::SortPairs(w.cub, w.cub_bytes, keys, positions,
                                          static_cast<uint32_t>(num_ids), 0,
                                          std::max(1, SignificantBits(num_rows)), stream);
  if (error != cudaSuccess) return error;
  // The scales leave the buffer of keys before the segments come.
  float* scales = reinterpret_cast<float*>(w.scales);
  if (scales == nullptr) scales = reinterpret_cast<float*>(keys.Alternate());
  error = WriteFactors(group, key_args, num_blocks, scales, positions.Current(),
                       positions.Alternate(), sorted, stream);
  if (error != cudaSuccess) return error;
  uint32_t* segments = reinterpret_cast<uint32_t*>(keys.Alternate());
  error =
      cub::DeviceSelect::If(w.cub, w.cub_bytes, thrust::counting_iterator<uint32_t>(0), segments,
                            w.num_starts, num_ids, StartsSegment<Key>{keys.Current()}, stream);
  if (error != cudaSuccess) return error;
  const UniqueArgs unique{first_keys,   group.num_tables, keys.Current(), num_ids,
                          w.num_starts, segments,         w.num_unique};
  CountRowsKernel<Key>
      <<<static_cast<unsigned>(num_ids / kThreads + 1), kThreads, 0, stream>>>(unique);
  sorted->keys = keys.Current();
  sorted->has_wide_keys = sizeof(Key) == 8;
  sorted->segments = segments;
  sorted->num_segment_words = SpareWords<Key>(num_ids);
  sorted->spare_rows = w.cub;
  return cudaGetLastError();
}

}  // namespace

int64_t SortRowsWorkspaceBytesCuda(const Group& group) {
  Workspace w;
  w.bytes = 0;
  const cudaError_t error = NeedsWideKeys(group) ? LayOut<uint64_t>(group, nullptr, &w)
                                                 : LayOut<uint32_t>(group, nullptr, &w);
  return error == cudaSuccess ? w.bytes : 0;
}

cudaError_t SortRowsCuda(const Group& group, void* workspace, SortedRows* sorted,
                         cudaStream_t stream) {
  if (group.batch.num_ids > kMaxBatchIds || group.batch.num_samples > kMaxBatchIds) {
    return cudaErrorInvalidValue;
  }
  return NeedsWideKeys(group) ? Sort<uint64_t>(group, workspace, sorted, stream)
                              : Sort<uint32_t>(group, workspace, sorted, stream);
}

}  // namespace group_embedding
