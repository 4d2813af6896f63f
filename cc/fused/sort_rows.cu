// SortRowsCuda: every looked-up id becomes a key, its row counted over all tables, and a radix sort
// of the keys' significant bits, which is stable, brings the samples of each row together in order.
//
// The sort goes back and forth between two buffers of keys and two of positions, 16 bytes per id.
// Later steps use the two buffers in which the sort does not end.
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <vector>

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "fused/group_lookup_grad.h"
#include "fused/sort_rows.cuh"

namespace group_embedding {
namespace {

// [num_ids] each: arrays for finding the address of the row that was read for each unique row.
struct ReadRows {
  uint32_t *samples = nullptr, *positions = nullptr;  // SortOptions has them
  int64_t* unique_addresses = nullptr;                // SortedRows has them
};

// The parts of the workspace.
struct Workspace {
  char *keys[2], *positions[2];
  char* scales;   // null: they are in a buffer of the sort
  ReadRows read;  // null pointers: not needed
  int64_t* num_unique;
  int64_t* num_starts;
  char* arrays;
  char* cub;
  size_t cub_bytes;
  int64_t bytes;
};

// The first key of each table of each owner, and the number of keys.
std::vector<int64_t> FirstKeys(const Group& group, int64_t num_owners) {
  std::vector<int64_t> first_keys = {0};
  for (int64_t v = 0; v < num_owners * group.num_tables; ++v) {
    const int64_t num_rows = group.tables[v % group.num_tables].num_rows;
    first_keys.push_back(first_keys.back() + (num_rows + num_owners - 1) / num_owners);
  }
  return first_keys;
}

bool NeedsWideKeys(const Group& group, const SortOptions& options) {
  return FirstKeys(group, options.num_owners).back() >= int64_t{0xFFFFFFFF};
}

int SignificantBits(int64_t value) {
  int bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

// 4-byte words of a buffer of keys, which also holds [num_ids + 2] segments.
template <typename Key>
int64_t SpareWords(int64_t num_ids) {
  return num_ids * static_cast<int64_t>(sizeof(Key) / 4) + 16;
}

bool HasFactors(const Group& group) {
  return group.batch.weights != nullptr ||
         std::any_of(group.features, group.features + group.num_features,
                     [](const Feature& feature) { return feature.combiner != Combiner::kSum; });
}

// Whether the rows that were read are needed: gradients of clipped rows depend on them.
bool NeedsReadRows(const Group& group) {
  return group.batch.reads != nullptr &&
         std::any_of(group.tables, group.tables + group.num_tables,
                     [](const Table& table) { return table.max_norm > 0; });
}

template <typename Key>
cudaError_t LayOut(const Group& group, const SortOptions& options, void* memory, Workspace* w) {
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
  w->cub_bytes = std::max(sort_bytes, select_bytes);

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
  if (NeedsReadRows(group)) {
    w->read.samples = reinterpret_cast<uint32_t*>(take(int64_t{num_ids} * 4));
    w->read.positions = reinterpret_cast<uint32_t*>(take(int64_t{num_ids} * 4));
    w->read.unique_addresses = reinterpret_cast<int64_t*>(take(int64_t{num_ids} * 8));
  }
  const int64_t num_counts = options.num_owners * group.num_tables + 1;
  w->num_unique = reinterpret_cast<int64_t*>(take(num_counts * 8));
  w->num_starts = reinterpret_cast<int64_t*>(take(8));
  w->arrays = take(AlignScratch(group.num_features * sizeof(KeyTask)) +
                   AlignScratch((group.num_features + 1) * 8) + AlignScratch(num_counts * 8) +
                   AlignScratch(group.num_tables * sizeof(RowsOfTable)));
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

// As many as have kIdsPerBlock ids on average.
int64_t SamplesPerBlock(const Batch& batch) {
  const int64_t samples = kIdsPerBlock * batch.num_samples / batch.num_ids;
  return std::clamp<int64_t>(samples, 1, kMaxSamplesPerBlock);
}

RowsOfTable RowsOf(const Group& group, int64_t t) {
  const Table& table = group.tables[t];
  return {reinterpret_cast<intptr_t>(table.rows), table.dim * SizeOf(group.dtype)};
}

// What the kernels that go over samples need, and how many blocks they have.
struct SamplePlan {
  std::vector<KeyTask> tasks;
  BlockPlan blocks;
  std::vector<int64_t> first_keys;  // [num_owners * num_tables + 1]
};

SamplePlan PlanSamples(const Group& group, const SortOptions& options, int64_t samples_per_block) {
  SamplePlan plan;
  plan.first_keys = FirstKeys(group, options.num_owners);
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    // With no rows, every id of a feature without gradient is left out.
    const int64_t num_rows = feature.output == nullptr ? 0 : group.tables[feature.table].num_rows;
    const int64_t first_row = options.first_rows == nullptr ? 0 : options.first_rows[feature.table];
    const RowsOfTable rows = RowsOf(group, feature.table);
    plan.tasks.push_back({plan.first_keys[feature.table], first_row, num_rows, feature.first_sample,
                          feature.num_samples, rows.address, rows.row_bytes, feature.combiner});
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

std::vector<RowsOfTable> ListRows(const Group& group) {
  std::vector<RowsOfTable> rows;
  for (int64_t t = 0; t < group.num_tables; ++t) rows.push_back(RowsOf(group, t));
  return rows;
}

template <typename Key>
cudaError_t Sort(const Group& group, SortOptions options, void* workspace, SortedRows* sorted,
                 cudaStream_t stream) {
  Workspace w;
  if (const cudaError_t error = LayOut<Key>(group, options, workspace, &w)) return error;
  const bool needs_read_rows = NeedsReadRows(group);
  if (needs_read_rows) {
    options.samples = w.read.samples;
    options.positions = w.read.positions;
  }
  const int64_t num_ids = group.batch.num_ids;
  const int64_t num_counts = options.num_owners * group.num_tables + 1;
  *sorted = {};
  sorted->num_unique = w.num_unique;
  if (num_ids == 0) {
    return cudaMemsetAsync(w.num_unique, 0, num_counts * sizeof(int64_t), stream);
  }

  KeyArgs key_args;
  key_args.team_bits = TeamBits(group.batch);
  key_args.samples_per_block = SamplesPerBlock(group.batch);
  const SamplePlan plan = PlanSamples(group, options, key_args.samples_per_block);
  const int64_t num_rows = plan.first_keys.back();
  if (plan.blocks.num_blocks() > INT32_MAX) return cudaErrorInvalidConfiguration;
  const unsigned num_blocks = static_cast<unsigned>(plan.blocks.num_blocks());
  DeviceArrays arrays(w.arrays);
  key_args.tasks = arrays.Add(plan.tasks);
  key_args.first_blocks = arrays.Add(plan.blocks.first_blocks());
  key_args.num_features = group.num_features;
  key_args.batch = group.batch;
  key_args.prune_negative = group.invalid_ids.prune_negative;
  key_args.num_owners = options.num_owners;
  key_args.keys_per_owner = num_rows / options.num_owners;
  key_args.samples = options.samples;
  key_args.id_addresses = options.id_addresses;
  key_args.fault = options.fault;
  key_args.judges_ids = options.fault != nullptr && !group.invalid_ids.read_zeros;
  key_args.keys = w.keys[0];
  key_args.positions = reinterpret_cast<uint32_t*>(w.positions[0]);
  key_args.scales = nullptr;
  sorted->first_keys = arrays.Add(plan.first_keys);
  const RowsOfTable* rows = needs_read_rows ? arrays.Add(ListRows(group)) : nullptr;
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
  if (options.positions != nullptr) {
    KeepPositionsKernel<<<static_cast<unsigned>((num_ids + kThreads - 1) / kThreads), kThreads, 0,
                          stream>>>(options.samples, group.batch.weights != nullptr, num_ids,
                                    positions.Current(), options.positions);
  }
  // The scales are read before the segments are written to the same buffer.
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
  const UniqueArgs unique{sorted->first_keys, keys.Current(), num_ids,
                          w.num_starts,       segments,       w.num_unique};
  CountRowsKernel<Key><<<static_cast<unsigned>(num_counts), kWarpSize, 0, stream>>>(unique);
  sorted->keys = keys.Current();
  sorted->has_wide_keys = sizeof(Key) == 8;
  sorted->segments = segments;
  if (needs_read_rows) {
    const ReadArgs read{rows,     group.batch.reads, group.num_tables,       w.num_unique,
                        segments, w.read.positions,  w.read.unique_addresses};
    FindReadRowsKernel<<<static_cast<unsigned>((num_ids + kThreads - 1) / kThreads), kThreads, 0,
                         stream>>>(read);
    sorted->unique_addresses = w.read.unique_addresses;
  }
  return cudaGetLastError();
}

}  // namespace

int64_t SortRowsWorkspaceBytesCuda(const Group& group, const SortOptions& options) {
  Workspace w;
  w.bytes = 0;
  const cudaError_t error = NeedsWideKeys(group, options)
                                ? LayOut<uint64_t>(group, options, nullptr, &w)
                                : LayOut<uint32_t>(group, options, nullptr, &w);
  return error == cudaSuccess ? w.bytes : 0;
}

cudaError_t SortRowsCuda(const Group& group, void* workspace, SortedRows* sorted,
                         cudaStream_t stream, const SortOptions& options) {
  if (group.batch.num_ids > kMaxBatchIds || group.batch.num_samples > kMaxBatchIds) {
    return cudaErrorInvalidValue;
  }
  return NeedsWideKeys(group, options) ? Sort<uint64_t>(group, options, workspace, sorted, stream)
                                       : Sort<uint32_t>(group, options, workspace, sorted, stream);
}

}  // namespace group_embedding
