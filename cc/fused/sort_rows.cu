// SortRowsCuda: every looked-up id becomes a key, its row counted over all tables, and a radix sort
// of the keys' significant bits, which is stable, brings the positions of each row together in
// order.
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
  uint32_t* positions;  // [num_ids]
  uint32_t* samples;    // [num_ids], or null: they take the place of positions
  float* scales;        // [num_samples]
};

// A block works for one sample per team of one feature; a thread takes every team.size-th id. A
// warp holds one team or several.
template <typename Key>
__global__ void __launch_bounds__(kThreads) WriteKeysKernel(KeyArgs args) {
  const int64_t feature = FindOwner(args.first_blocks, args.num_features, blockIdx.x);
  const KeyTask& task = args.tasks[feature];
  const Team team(args.team_bits);
  const int64_t block = blockIdx.x - args.first_blocks[feature];
  const int64_t sample = block * (kThreads >> args.team_bits) + team.index;
  if (sample >= task.num_samples) return;

  const Batch& batch = args.batch;
  const int64_t in_batch = task.first_sample + sample;
  const int64_t end = batch.row_splits[in_batch + 1];
  float sum_weights = 0, sum_squares = 0;
  for (int64_t i = batch.row_splits[in_batch] + team.lane; i < end; i += team.size) {
    const int64_t id = batch.ids[i];
    const float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
    const IdUse use = UseOfId(id, weight, task.num_rows, task.combiner, args.prune_negative);
    if (use != IdUse::kNone) {
      sum_weights += weight;
      sum_squares += weight * weight;
    }
    static_cast<Key*>(args.keys)[i] =
        use == IdUse::kRow ? static_cast<Key>(task.first_key + id) : kNoRow<Key>;
    args.positions[i] = static_cast<uint32_t>(args.samples == nullptr ? in_batch : i);
    if (args.samples != nullptr) args.samples[i] = static_cast<uint32_t>(in_batch);
  }
  const float scale = CombinerScale(task.combiner, team.Sum(sum_weights), team.Sum(sum_squares));
  if (team.lane == 0) args.scales[in_batch] = scale;
}

// Whether entry `i` is the first of its key.
template <typename Key>
struct StartsSegment {
  const Key* keys;
  __device__ bool operator()(int64_t i) const { return i == 0 || keys[i] != keys[i - 1]; }
};

struct UniqueArgs {
  const int64_t* first_keys;  // [num_tables]
  int64_t num_tables;
  const void* keys;  // [num_ids], sorted
  int64_t num_ids;
  const int64_t* num_starts;  // [1]
  int64_t* segments;          // [num_ids + 1], of which the starts are there
  int64_t* rows;              // [num_ids]
  int64_t* num_unique;        // [num_tables + 1]
};

// A thread names one unique row, and where a table's rows begin it counts those before them. The
// entries of kNoRow, after all rows, start a segment too: there the last row's entries end.
template <typename Key>
__global__ void __launch_bounds__(kThreads) NameRowsKernel(UniqueArgs args) {
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
    args.rows[u] = static_cast<int64_t>(key) - args.first_keys[table];
    if (u > 0 && before >= static_cast<Key>(args.first_keys[table])) return;
  } else if (u == num_starts) {
    args.segments[u] = args.num_ids;
  }
  for (int64_t t = u == 0 ? 0 : table_of(before) + 1; t <= table; ++t) args.num_unique[t] = u;
}

// The parts of the workspace.
struct Workspace {
  // Two buffers of keys and positions for the sort to go back and forth between; the one that it
  // does not end in then holds the rows.
  char *keys[2], *positions[2];
  int64_t* segments;
  uint32_t* samples;
  float* scales;
  int64_t* num_unique;
  int64_t* num_starts;
  char* arrays;
  char* cub;
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

template <typename Key>
cudaError_t LayOut(const Group& group, void* memory, Workspace* w) {
  const uint32_t num_ids = static_cast<uint32_t>(group.batch.num_ids);
  cub::DoubleBuffer<Key> keys;
  cub::DoubleBuffer<uint32_t> positions;
  size_t sort_bytes = 0, select_bytes = 0;
  cudaError_t error =
      cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, keys, positions, num_ids);
  if (error != cudaSuccess) return error;
  error = cub::DeviceSelect::If(nullptr, select_bytes, thrust::counting_iterator<int64_t>(0),
                                static_cast<int64_t*>(nullptr), static_cast<int64_t*>(nullptr),
                                static_cast<int64_t>(num_ids), StartsSegment<Key>{nullptr});
  if (error != cudaSuccess) return error;
  w->cub_bytes = std::max(sort_bytes, select_bytes);

  int64_t at = 0;
  auto take = [&](int64_t bytes) {
    char* part = static_cast<char*>(memory) + at;
    at += AlignScratch(bytes);
    return part;
  };
  for (int b = 0; b < 2; ++b) {
    // Also room for [num_ids] rows of 8 bytes.
    w->keys[b] = take(num_ids * (sizeof(Key) + sizeof(uint32_t)));
    w->positions[b] = w->keys[b] + num_ids * sizeof(Key);
  }
  w->segments = reinterpret_cast<int64_t*>(take((int64_t{num_ids} + 1) * 8));
  // Without weights nothing but the sample of a sorted id is asked for, and that can be sorted
  // itself.
  const bool weighted = group.batch.weights != nullptr;
  w->samples = weighted ? reinterpret_cast<uint32_t*>(take(int64_t{num_ids} * 4)) : nullptr;
  w->scales = reinterpret_cast<float*>(take(group.batch.num_samples * 4));
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

template <typename Key>
cudaError_t Sort(const Group& group, void* workspace, SortedRows* sorted, cudaStream_t stream) {
  Workspace w;
  if (const cudaError_t error = LayOut<Key>(group, workspace, &w)) return error;
  const int64_t num_ids = group.batch.num_ids;
  if (num_ids == 0) {
    *sorted = {w.segments, w.segments, w.samples, w.samples, w.scales, w.num_unique};  // all empty
    const cudaError_t error = cudaMemsetAsync(w.segments, 0, sizeof(int64_t), stream);
    if (error != cudaSuccess) return error;
    return cudaMemsetAsync(w.num_unique, 0, (group.num_tables + 1) * sizeof(int64_t), stream);
  }

  KeyArgs key_args;
  key_args.team_bits = TeamBits(group.batch);
  const int64_t samples_per_block = kThreads >> key_args.team_bits;
  std::vector<int64_t> first_keys = {0};
  for (int64_t t = 0; t < group.num_tables; ++t) {
    first_keys.push_back(first_keys.back() + group.tables[t].num_rows);
  }
  std::vector<KeyTask> tasks;
  BlockPlan blocks;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    tasks.push_back({first_keys[feature.table], group.tables[feature.table].num_rows,
                     feature.first_sample, feature.num_samples, feature.combiner});
    blocks.Append((feature.num_samples + samples_per_block - 1) / samples_per_block);
  }
  const int64_t num_rows = first_keys.back();
  first_keys.pop_back();
  if (blocks.num_blocks() > INT32_MAX) return cudaErrorInvalidConfiguration;
  DeviceArrays arrays(w.arrays);
  key_args.tasks = arrays.Add(tasks);
  key_args.first_blocks = arrays.Add(blocks.first_blocks());
  key_args.num_features = group.num_features;
  key_args.batch = group.batch;
  key_args.prune_negative = group.invalid_ids.prune_negative;
  key_args.keys = w.keys[0];
  key_args.positions = reinterpret_cast<uint32_t*>(w.positions[0]);
  key_args.samples = w.samples;
  key_args.scales = w.scales;
  const int64_t* device_first_keys = arrays.Add(first_keys);
  if (const cudaError_t error = arrays.Send(stream)) return error;
  // After a fault in the row splits there may be positions that no sample covers: they have no row.
  cudaError_t error = cudaMemsetAsync(w.keys[0], 0xFF, num_ids * sizeof(Key), stream);
  if (error != cudaSuccess) return error;
  if (blocks.num_blocks() > 0) {
    WriteKeysKernel<Key>
        <<<static_cast<unsigned>(blocks.num_blocks()), kThreads, 0, stream>>>(key_args);
    if ((error = cudaGetLastError()) != cudaSuccess) return error;
  }

  cub::DoubleBuffer<Key> keys(reinterpret_cast<Key*>(w.keys[0]), reinterpret_cast<Key*>(w.keys[1]));
  cub::DoubleBuffer<uint32_t> positions(reinterpret_cast<uint32_t*>(w.positions[0]),
                                        reinterpret_cast<uint32_t*>(w.positions[1]));
  error = cub::DeviceRadixSort::SortPairs(w.cub, w.cub_bytes, keys, positions,
                                          static_cast<uint32_t>(num_ids), 0,
                                          std::max(1, SignificantBits(num_rows)), stream);
  if (error != cudaSuccess) return error;
  error =
      cub::DeviceSelect::If(w.cub, w.cub_bytes, thrust::counting_iterator<int64_t>(0), w.segments,
                            w.num_starts, num_ids, StartsSegment<Key>{keys.Current()}, stream);
  if (error != cudaSuccess) return error;

  UniqueArgs unique;
  unique.first_keys = device_first_keys;
  unique.num_tables = group.num_tables;
  unique.keys = keys.Current();
  unique.num_ids = num_ids;
  unique.num_starts = w.num_starts;
  unique.segments = w.segments;
  unique.rows = reinterpret_cast<int64_t*>(w.keys[1 - keys.selector]);
  unique.num_unique = w.num_unique;
  NameRowsKernel<Key>
      <<<static_cast<unsigned>(num_ids / kThreads + 1), kThreads, 0, stream>>>(unique);
  *sorted = {unique.rows, w.segments, positions.Current(), w.samples, w.scales, w.num_unique};
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
