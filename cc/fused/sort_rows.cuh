// The kernels of sort_rows.cu, which alone includes this.
#pragma once

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

}  // namespace
}  // namespace group_embedding
