// Two radix sorts, both stable: by key, then by part, so that equal keys of a table lie together,
// ascending within each part.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <type_traits>

#include "core/descriptors.cuh"
#include "core/owner.h"
#include "core/rows.cuh"
#include "exchange/gpu/number_keys.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;

// Keyed ids are counted over the batch, without the ids of other features. `keyed_id` is an index
// among them.
struct FeatureOfKeyedIds {
  int64_t first_keyed_id, first_id, table;
};

struct KeyArgs {
  const FeatureOfKeyedIds* features;  // [num_features]
  int64_t num_features, num_keyed_ids, num_tables, num_ranks;
  const int64_t* ids;       // [num_ids] the batch's
  uint64_t* keys;           // [num_keyed_ids] in the order of the batch, then sorted
  uint32_t* keyed_ids;      // [num_keyed_ids] the keyed id of each sorted key
  uint32_t* parts;          // [num_keyed_ids] the part of each sorted key, then sorted
  uint32_t* entries;        // [num_keyed_ids] for each sorted part, its index among the sorted keys
  const uint32_t* uniques;  // [num_keyed_ids] the number of distinct keys up to and with an entry
  int64_t* keys_of_parts;   // [num_keyed_ids]
  int64_t* first_keys;      // [num_parts + 1]
  int64_t* numbers;         // [num_ids]

  __device__ const FeatureOfKeyedIds& FeatureOf(int64_t keyed_id) const {
    const int64_t feature = FindOwnerAlone(
        num_features, keyed_id, [this](int64_t f) { return features[f].first_keyed_id; });
    return features[feature];
  }
  __device__ int64_t PositionOf(int64_t keyed_id) const {
    const FeatureOfKeyedIds& feature = FeatureOf(keyed_id);
    return feature.first_id + keyed_id - feature.first_keyed_id;
  }
};

// Whether an entry, in the order of parts, is the first of its key.
struct StartsKey {
  const uint64_t* keys;
  const uint32_t *parts, *entries;
  __device__ uint32_t operator()(uint32_t i) const {
    return i == 0 || parts[i] != parts[i - 1] || keys[entries[i]] != keys[entries[i - 1]];
  }
};

__device__ int64_t ThreadIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// A thread has one key.
__global__ void __launch_bounds__(kThreads) GatherKeysKernel(const __grid_constant__ KeyArgs args) {
  const int64_t i = ThreadIndex();
  if (i >= args.num_keyed_ids) return;
  args.keys[i] = static_cast<uint64_t>(args.ids[args.PositionOf(i)]);
  args.keyed_ids[i] = static_cast<uint32_t>(i);
}

// A thread has one sorted key.
__global__ void __launch_bounds__(kThreads) WritePartsKernel(const __grid_constant__ KeyArgs args) {
  const int64_t i = ThreadIndex();
  if (i >= args.num_keyed_ids) return;
  const int64_t owner = OwnerOfKey(static_cast<int64_t>(args.keys[i]), args.num_ranks);
  const int64_t table = args.FeatureOf(args.keyed_ids[i]).table;
  args.parts[i] = static_cast<uint32_t>(owner * args.num_tables + table);
  args.entries[i] = static_cast<uint32_t>(i);
}

// A thread has one entry. At the first entry of a part it writes where that part, and any empty
// parts before it, begin.
__global__ void __launch_bounds__(kThreads) ListKeysKernel(const __grid_constant__ KeyArgs args) {
  const int64_t i = ThreadIndex();
  if (i >= args.num_keyed_ids) return;
  const StartsKey starts{args.keys, args.parts, args.entries};
  const int64_t unique = int64_t{args.uniques[i]} - 1, num_parts = args.num_ranks * args.num_tables;
  if (starts(static_cast<uint32_t>(i))) {
    args.keys_of_parts[unique] = static_cast<int64_t>(args.keys[args.entries[i]]);
  }
  const int64_t part = args.parts[i], before = i == 0 ? -1 : int64_t{args.parts[i - 1]};
  for (int64_t p = before + 1; p <= part; ++p) args.first_keys[p] = unique;
  if (i + 1 < args.num_keyed_ids) return;
  for (int64_t p = part + 1; p <= num_parts; ++p) args.first_keys[p] = unique + 1;
}

// A thread has one entry.
__global__ void __launch_bounds__(kThreads)
    WriteNumbersKernel(const __grid_constant__ KeyArgs args) {
  const int64_t i = ThreadIndex();
  if (i >= args.num_keyed_ids) return;
  const int64_t part = args.parts[i], owner = part / args.num_tables;
  const int64_t in_part = int64_t{args.uniques[i]} - 1 - args.first_keys[part];
  const int64_t position = args.PositionOf(args.keyed_ids[args.entries[i]]);
  args.numbers[position] = in_part * args.num_ranks + owner;
}

struct Workspace {
  char* features;
  uint64_t* keys[2];
  uint32_t *keyed_ids[2], *parts[2], *entries[2], *uniques;
  int64_t *keys_of_parts, *first_keys, *numbers;
  char* cub;
  size_t cub_bytes;
  int64_t bytes;
};

int64_t NumKeyedIds(const std::vector<KeyedFeature>& features) {
  int64_t num_keyed_ids = 0;
  for (const KeyedFeature& feature : features) num_keyed_ids += feature.num_ids;
  return num_keyed_ids;
}

auto StartsOf(const StartsKey& starts) {
  return thrust::make_transform_iterator(thrust::counting_iterator<uint32_t>(0), starts);
}

cudaError_t LayOut(const std::vector<KeyedFeature>& features, int64_t num_ids, int64_t num_parts,
                   void* memory, Workspace* w) {
  const auto num_keyed_ids = static_cast<uint32_t>(NumKeyedIds(features));
  cub::DoubleBuffer<uint64_t> keys;
  cub::DoubleBuffer<uint32_t> values;
  size_t by_key = 0, by_part = 0, scan = 0;
  cudaError_t error = cub::DeviceRadixSort::SortPairs(nullptr, by_key, keys, values, num_keyed_ids);
  if (error == cudaSuccess) {
    error = cub::DeviceRadixSort::SortPairs(nullptr, by_part, values, values, num_keyed_ids);
  }
  if (error == cudaSuccess) {
    error = cub::DeviceScan::InclusiveSum(nullptr, scan, StartsOf({}),
                                          static_cast<uint32_t*>(nullptr), num_keyed_ids);
  }
  if (error != cudaSuccess) return error;
  w->cub_bytes = std::max({by_key, by_part, scan});
  int64_t at = 0;
  auto take = [&](auto** array, int64_t count) {
    *array = reinterpret_cast<std::decay_t<decltype(**array)>*>(static_cast<char*>(memory) + at);
    at += AlignScratch(count * static_cast<int64_t>(sizeof(**array)));
  };
  take(&w->features,
       AlignScratch(static_cast<int64_t>(features.size() * sizeof(FeatureOfKeyedIds))));
  for (auto& buffer : w->keys) take(&buffer, num_keyed_ids);
  for (auto* buffers : {w->keyed_ids, w->parts, w->entries}) {
    take(&buffers[0], num_keyed_ids);
    take(&buffers[1], num_keyed_ids);
  }
  take(&w->uniques, num_keyed_ids);
  take(&w->keys_of_parts, num_keyed_ids);
  take(&w->first_keys, num_parts + 1);
  take(&w->numbers, num_ids);
  take(&w->cub, static_cast<int64_t>(w->cub_bytes));
  w->bytes = at;
  return cudaSuccess;
}

std::vector<FeatureOfKeyedIds> KeyedIdsOf(const std::vector<KeyedFeature>& features) {
  std::vector<FeatureOfKeyedIds> keyed_ids;
  int64_t first_keyed_id = 0;
  for (const KeyedFeature& feature : features) {
    if (feature.num_ids > 0) keyed_ids.push_back({first_keyed_id, feature.first_id, feature.table});
    first_keyed_id += feature.num_ids;
  }
  return keyed_ids;
}

}  // namespace

int64_t NumberedRows(const std::vector<KeyedFeature>& features, int64_t table, int64_t num_ranks) {
  int64_t num_ids = 0;
  for (const KeyedFeature& feature : features)
    num_ids += feature.table == table ? feature.num_ids : 0;
  return num_ids * num_ranks;
}

int64_t NumberKeysWorkspaceBytesCuda(const std::vector<KeyedFeature>& features, int64_t num_ids,
                                     int64_t num_tables, int64_t num_ranks) {
  Workspace w;
  w.bytes = 0;
  const cudaError_t error = LayOut(features, num_ids, num_ranks * num_tables, nullptr, &w);
  return error == cudaSuccess ? w.bytes : 0;
}

cudaError_t NumberKeysCuda(const std::vector<KeyedFeature>& features, const int64_t* ids,
                           int64_t num_ids, int64_t num_tables, int64_t num_ranks, void* workspace,
                           NumberedKeys* numbered, cudaStream_t stream) {
  const int64_t num_parts = num_ranks * num_tables;
  Workspace w;
  cudaError_t error = LayOut(features, num_ids, num_parts, workspace, &w);
  if (error != cudaSuccess) return error;
  *numbered = {w.numbers, w.keys_of_parts, w.first_keys};
  error =
      cudaMemcpyAsync(w.numbers, ids, num_ids * sizeof(int64_t), cudaMemcpyDeviceToDevice, stream);
  const int64_t num_keyed_ids = NumKeyedIds(features);
  if (error != cudaSuccess) return error;
  if (num_keyed_ids == 0) {
    return cudaMemsetAsync(w.first_keys, 0, (num_parts + 1) * sizeof(int64_t), stream);
  }
  const std::vector<FeatureOfKeyedIds> features_of = KeyedIdsOf(features);
  DeviceArrays arrays(w.features);
  KeyArgs args{};
  args.features = arrays.Add(features_of);
  args.num_features = static_cast<int64_t>(features_of.size());
  args.num_keyed_ids = num_keyed_ids;
  args.num_tables = num_tables;
  args.num_ranks = num_ranks;
  args.ids = ids;
  args.keys = w.keys[0];
  args.keyed_ids = w.keyed_ids[0];
  if ((error = arrays.Send(stream)) != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>((num_keyed_ids + kThreads - 1) / kThreads);
  GatherKeysKernel<<<blocks, kThreads, 0, stream>>>(args);

  cub::DoubleBuffer<uint64_t> keys(w.keys[0], w.keys[1]);
  cub::DoubleBuffer<uint32_t> keyed_ids(w.keyed_ids[0], w.keyed_ids[1]);
  const auto count = static_cast<uint32_t>(num_keyed_ids);
  error =
      cub::DeviceRadixSort::SortPairs(w.cub, w.cub_bytes, keys, keyed_ids, count, 0, 64, stream);
  if (error != cudaSuccess) return error;
  args.keys = keys.Current();
  args.keyed_ids = keyed_ids.Current();
  args.parts = w.parts[0];
  args.entries = w.entries[0];
  WritePartsKernel<<<blocks, kThreads, 0, stream>>>(args);

  cub::DoubleBuffer<uint32_t> parts(w.parts[0], w.parts[1]), entries(w.entries[0], w.entries[1]);
  int bits = 1;
  while (num_parts >> bits != 0) ++bits;
  error =
      cub::DeviceRadixSort::SortPairs(w.cub, w.cub_bytes, parts, entries, count, 0, bits, stream);
  if (error != cudaSuccess) return error;
  args.parts = parts.Current();
  args.entries = entries.Current();
  const StartsKey starts{args.keys, args.parts, args.entries};
  error =
      cub::DeviceScan::InclusiveSum(w.cub, w.cub_bytes, StartsOf(starts), w.uniques, count, stream);
  if (error != cudaSuccess) return error;
  args.uniques = w.uniques;
  args.keys_of_parts = w.keys_of_parts;
  args.first_keys = w.first_keys;
  args.numbers = w.numbers;
  ListKeysKernel<<<blocks, kThreads, 0, stream>>>(args);
  WriteNumbersKernel<<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace group_embedding
