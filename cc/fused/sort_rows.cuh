// The kernels of sort_rows.cu, which alone includes this.
#pragma once

#include "core/descriptors.cuh"
#include "core/fault.cuh"
#include "core/rows.cuh"
#include "fused/group_lookup_grad.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kIdsPerBlock = 512;  // of the kernels that go over samples, on average
constexpr int64_t kMaxSamplesPerBlock = 1024;

// The key of an id without a gradient: all ones. The sort compares the bits that the number of all
// rows needs, in which it is above every row.
template <typename Key>
constexpr Key kNoRow = static_cast<Key>(-1);

// One feature with its table, as the kernels need it.
struct KeyTask {
  int64_t first_key;  // of the table
  int64_t first_row;  // rows before it have no key
  int64_t num_rows;
  int64_t first_sample;
  int64_t num_samples;
  int64_t rows;  // address of the table's first row
  int64_t row_bytes;
  Combiner combiner;
};

struct KeyArgs {
  const KeyTask* tasks;         // [num_features]
  const int64_t* first_blocks;  // [num_features + 1]
  int64_t num_features;
  Batch batch;
  bool prune_negative;
  int64_t samples_per_block;
  int32_t team_bits;  // of WriteScalesKernel; see Team
  int64_t num_owners;
  int64_t keys_per_owner;
  void* keys;             // [num_ids]
  uint32_t* positions;    // [num_ids], or without weights the sample of each, unless `samples` is
  uint32_t* samples;      // there to take it
  int64_t* id_addresses;  // [num_ids] or null
  Fault* fault;           // takes a wrong row split, and a bad id if ids are judged; or null
  bool judges_ids;
  float* scales;  // [num_samples]
};

__device__ float WeightOf(const Batch& batch, int64_t i) {
  return batch.weights == nullptr ? 1.0f : batch.weights[i];
}

// What a block works for: consecutive samples of one feature.
struct SamplesOfBlock {
  const KeyTask& task;
  int64_t first;  // in the batch
  int32_t count;

  int64_t feature;

  __device__ static SamplesOfBlock Find(const KeyArgs& args) {
    const int64_t feature = FindOwner(args.first_blocks, args.num_features, blockIdx.x);
    const KeyTask& task = args.tasks[feature];
    const int64_t begin = (blockIdx.x - args.first_blocks[feature]) * args.samples_per_block;
    const int64_t end = min(begin + args.samples_per_block, task.num_samples);
    return {task, task.first_sample + begin, static_cast<int32_t>(end - begin), feature};
  }
};

__device__ inline int64_t KeyOfRow(const KeyArgs& args, const KeyTask& task, int64_t row) {
  if (args.num_owners == 1) return task.first_key + row;
  const uint64_t owners = static_cast<uint64_t>(args.num_owners);
  const uint64_t local = static_cast<uint64_t>(row) / owners;
  return (row - local * owners) * args.keys_per_owner + task.first_key + local;
}

// A thread looks at every kThreads-th sample of the block. begins: where each sample's ids
// begin, and the end of the last sample's.
__device__ inline void ReportFallingSplit(const KeyArgs& args, const SamplesOfBlock& samples,
                                          const uint32_t* begins) {
  for (int32_t s = threadIdx.x; s < samples.count; s += kThreads) {
    if (begins[s] <= begins[s + 1]) continue;
    const int64_t first = samples.task.first_sample;
    RaiseFault(args.fault, FaultKind::kRowSplitsInvalid, samples.feature,
               samples.first - first + s + 1, int64_t{begins[s + 1]} - args.batch.Begin(first));
  }
}

// A thread writes every kThreads-th key of the block, however many ids each sample has.
template <typename Key>
__global__ void __launch_bounds__(kThreads) WriteKeysKernel(KeyArgs args) {
  __shared__ uint32_t begins[kMaxSamplesPerBlock + 1];
  const Batch& batch = args.batch;
  const SamplesOfBlock samples = SamplesOfBlock::Find(args);
  const KeyTask& task = samples.task;
  for (int32_t s = threadIdx.x; s <= samples.count; s += kThreads) {
    begins[s] = static_cast<uint32_t>(batch.Begin(samples.first + s));
  }
  __syncthreads();
  if (args.fault != nullptr) ReportFallingSplit(args, samples, begins);
  const int64_t stop = begins[samples.count];
  for (int64_t i = int64_t{begins[0]} + threadIdx.x; i < stop; i += kThreads) {
    const int64_t id = batch.ids[i];
    const IdUse use =
        UseOfId(id, WeightOf(batch, i), task.num_rows, task.combiner, args.prune_negative);
    const bool has_key = use == IdUse::kRow && id >= task.first_row;
    static_cast<Key*>(args.keys)[i] =
        has_key ? static_cast<Key>(KeyOfRow(args, task, id)) : kNoRow<Key>;
    if (args.id_addresses != nullptr && !has_key) {
      args.id_addresses[i] = use == IdUse::kRow     ? task.rows + id * task.row_bytes
                             : use == IdUse::kZeros ? kZeroRowAddress
                                                    : kSkippedIdAddress;
    }
    const bool is_bad = args.judges_ids && use == IdUse::kZeros;
    int64_t position = i;
    if (batch.weights == nullptr || is_bad) {
      int32_t sample = 0, end = samples.count;  // the last that begins at or before i
      while (end - sample > 1) {
        const int32_t middle = (sample + end) / 2;
        (begins[middle] <= i ? sample : end) = middle;
      }
      if (is_bad) {
        RaiseFault(args.fault, FaultKind::kIdOutOfRange, samples.feature,
                   samples.first - task.first_sample + sample, id);
      }
      if (args.samples != nullptr) {
        args.samples[i] = static_cast<uint32_t>(samples.first + sample);
      } else if (batch.weights == nullptr) {
        position = samples.first + sample;
      }
    }
    args.positions[i] = static_cast<uint32_t>(position);
  }
}

// A team finds the scale of one sample after the other.
__global__ void __launch_bounds__(kThreads) WriteScalesKernel(KeyArgs args) {
  const Batch& batch = args.batch;
  const SamplesOfBlock samples = SamplesOfBlock::Find(args);
  const KeyTask& task = samples.task;
  const Team team(args.team_bits);
  for (int32_t s = team.index; s < samples.count; s += kThreads >> args.team_bits) {
    const int64_t sample = samples.first + s, end = batch.Begin(sample + 1);
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
  }
}

// A thread keeps the position of one sorted entry. Without weights it replaces the position by its
// sample.
__global__ void __launch_bounds__(kThreads)
    KeepPositionsKernel(const uint32_t* samples, bool weighted, int64_t num_ids,
                        uint32_t* positions, uint32_t* kept) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= num_ids) return;
  const uint32_t position = positions[at];
  kept[at] = position;
  if (!weighted) positions[at] = samples[position];
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
  const int64_t sample =
      FindOwnerAlone(batch.num_samples, position, [&](int64_t s) { return batch.Begin(s); });
  args.samples[at] = static_cast<uint32_t>(sample);
  args.factors[at] = batch.weights[position] * args.scales[sample];
}

// Whether entry `i` is the first of its key.
template <typename Key>
struct StartsSegment {
  const Key* keys;
  __device__ bool operator()(uint32_t i) const { return i == 0 || keys[i] != keys[i - 1]; }
};

struct UniqueArgs {
  const int64_t* first_keys;  // [one per block]
  const void* keys;           // [num_ids], sorted
  int64_t num_ids;
  const int64_t* num_starts;  // [1]
  uint32_t* segments;         // [num_ids + 1], of which the starts are there
  int64_t* num_unique;        // [one per block]
};

// A warp counts the unique rows before one table, or before the end of the last, by a search that
// looks at 32 of them at a time.
template <typename Key>
__global__ void __launch_bounds__(kWarpSize) CountRowsKernel(UniqueArgs args) {
  const Key* keys = static_cast<const Key*>(args.keys);
  const Key first_key = static_cast<Key>(args.first_keys[blockIdx.x]);
  const int64_t num_starts = *args.num_starts;
  int64_t begin = 0, end = num_starts;
  while (begin < end) {
    const int64_t step = (end - begin + kWarpSize - 1) / kWarpSize;
    const int64_t at = begin + threadIdx.x * step;
    const bool is_before = at < end && keys[args.segments[at]] < first_key;
    const int num_before = __popc(__ballot_sync(kFullWarp, is_before));
    end = min(end, begin + num_before * step);
    begin += num_before == 0 ? 0 : (num_before - 1) * step + 1;
  }
  if (threadIdx.x > 0) return;
  args.num_unique[blockIdx.x] = begin;
  // Entries of kNoRow, after all rows, start a segment too: there the last row's entries end.
  if (begin == num_starts) args.segments[begin] = static_cast<uint32_t>(args.num_ids);
}

struct RowsOfTable {
  int64_t address;
  int64_t row_bytes;
};

struct ReadArgs {
  const RowsOfTable* tables;  // [num_tables]
  const int64_t* reads;       // [num_ids], as in Batch
  int64_t num_tables;
  const int64_t* num_unique;  // [num_tables + 1]
  const uint32_t* segments;   // [num_unique + 1]
  const uint32_t* positions;  // [num_ids]
  int64_t* unique_addresses;  // [num_unique] written
};

// A thread finds the row that one unique row was read as: all its entries were read alike.
__global__ void __launch_bounds__(kThreads) FindReadRowsKernel(ReadArgs args) {
  const int64_t unique = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (unique >= args.num_unique[args.num_tables]) return;
  const int64_t table =
      FindOwnerAlone(args.num_tables, unique, [&](int64_t t) { return args.num_unique[t]; });
  const RowsOfTable& rows = args.tables[table];
  const int64_t row = args.reads[args.positions[args.segments[unique]]];
  args.unique_addresses[unique] = rows.address + row * rows.row_bytes;
}

}  // namespace
}  // namespace group_embedding
