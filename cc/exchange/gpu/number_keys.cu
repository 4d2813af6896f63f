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

// A keyed id's place: how many keyed ids of the batch are before it.
struct FeatureOfPlaces {
  int64_t first_place, first_id, table;
};

struct KeyArgs {
  const FeatureOfPlaces* features;  // [num_features]
  int64_t num_features, num_places, num_tables, num_ranks;
  const int64_t* ids;       // [num_ids] the batch's
  uint64_t* keys;           // [num_places] by place, then sorted
  uint32_t* places;         // [num_places] those of the sorted keys
  uint32_t* parts;          // [num_places] of the sorted keys, then sorted
  uint32_t* entries;        // [num_places] those of the sorted parts among the sorted keys
  const uint32_t* uniques;  // [num_places] how many different keys begin up to an entry
  int64_t* keys_of_parts;   // [num_places]
  int64_t* first_keys;      // [num_parts + 1]
  int64_t* numbers;         // [num_ids]

  __device__ const FeatureOfPlaces& FeatureOf(int64_t place) const {
    const int64_t feature =
        FindOwnerAlone(num_features, place, [this](int64_t f) { return features[f].first_place; });
    return features[feature];
  }
  __device__ int64_t PositionOf(int64_t place) const {
    const FeatureOfPlaces& feature = FeatureOf(place);
    return feature.first_id + place - feature.first_place;
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
  if (i >= args.num_places) return;
  args.keys[i] = static_cast<uint64_t>(args.ids[args.PositionOf(i)]);
  args.places[i] = static_cast<uint32_t>(i);
}

// A thread has one sorted key.
__global__ void __launch_bounds__(kThreads) WritePartsKernel(const __grid_constant__ KeyArgs args) {
  const int64_t i = ThreadIndex();
  if (i >= args.num_places) return;
  const int64_t owner = OwnerOfKey(static_cast<int64_t>(args.keys[i]), args.num_ranks);
  const int64_t table = args.FeatureOf(args.places[i]).table;
  args.parts[i] = static_cast<uint32_t>(owner * args.num_tables + table);
  args.entries[i] = static_cast<uint32_t>(i);
}

// A thread has one entry; where a part begins, it says so of that and of the empty ones before.
__global__ void __launch_bounds__(kThreads) ListKeysKernel(const __grid_constant__ KeyArgs args) {
  const int64_t i = ThreadIndex();
  if (i >= args.num_places) return;
  const StartsKey starts{args.keys, args.parts, args.entries};
  const int64_t unique = int64_t{args.uniques[i]} - 1, num_parts = args.num_ranks * args.num_tables;
  if (starts(static_cast<uint32_t>(i))) {
    args.keys_of_parts[unique] = static_cast<int64_t>(args.keys[args.entries[i]]);
  }
  const int64_t part = args.parts[i], before = i == 0 ? -1 : int64_t{args.parts[i - 1]};
  for (int64_t p = before + 1; p <= part; ++p) args.first_keys[p] = unique;
  if (i + 1 < args.num_places) return;
  for (int64_t p = part + 1; p <= num_parts; ++p) args.first_keys[p] = unique + 1;
}

// A thread has one entry.
__global__ void __launch_bounds__(kThreads)
    WriteNumbersKernel(const __grid_constant__ KeyArgs args) {
  const int64_t i = ThreadIndex();
  if (i >= args.num_places) return;
  const int64_t part = args.parts[i], owner = part / args.num_tables;
  const int64_t in_part = int64_t{args.uniques[i]} - 1 - args.first_keys[part];
  const int64_t position = args.PositionOf(args.places[args.entries[i]]);
  args.numbers[position] = in_part * args.num_ranks + owner;
}

struct Workspace {
  char* features;
  uint64_t* keys[2];
  uint32_t *places[2], *parts[2], *entries[2], *uniques;
  int64_t *keys_of_parts, *first_keys, *numbers;
  char* cub;
  size_t cub_bytes;
  int64_t bytes;
};

int64_t NumPlaces(const std::vector<KeyedFeature>& features) {
  int64_t num_places = 0;
  for (const KeyedFeature& feature : features) num_places += feature.num_ids;
  return num_places;
}

auto StartsOf(const StartsKey& starts) {
  return thrust::make_transform_iterator(thrust::counting_iterator<uint32_t>(0), starts);
}

cudaError_t LayOut(const std::vector<KeyedFeature>& features, int64_t num_ids, int64_t num_parts,
                   void* memory, Workspace* w) {
  const auto num_places = static_cast<uint32_t>(NumPlaces(features));
  cub::DoubleBuffer<uint64_t> keys;
  cub::DoubleBuffer<uint32_t> values;
  size_t by_key = 0, by_part = 0, scan = 0;
  cudaError_t error = cub::DeviceRadixSort::SortPairs(nullptr, by_key, keys, values, num_places);
  if (error == cudaSuccess) {
    error = cub::DeviceRadixSort::SortPairs(nullptr, by_part, values, values, num_places);
  }
  if (error == cudaSuccess) {
    error = cub::DeviceScan::InclusiveSum(nullptr, scan, StartsOf({}),
                                          static_cast<uint32_t*>(nullptr), num_places);
  }
  if (error != cudaSuccess) return error;
  w->cub_bytes = std::max({by_key, by_part, scan});
  int64_t at = 0;
  auto take = [&](auto** array, int64_t count) {
    *array = reinterpret_cast<std::decay_t<decltype(**array)>*>(static_cast<char*>(memory) + at);
    at += AlignScratch(count * static_cast<int64_t>(sizeof(**array)));
  };
  take(&w->features, AlignScratch(static_cast<int64_t>(features.size() * sizeof(FeatureOfPlaces))));
  for (auto& buffer : w->keys) take(&buffer, num_places);
  for (auto* buffers : {w->places, w->parts, w->entries}) {
    take(&buffers[0], num_places);
    take(&buffers[1], num_places);
  }
  take(&w->uniques, num_places);
  take(&w->keys_of_parts, num_places);
  take(&w->first_keys, num_parts + 1);
  take(&w->numbers, num_ids);
  take(&w->cub, static_cast<int64_t>(w->cub_bytes));
  w->bytes = at;
  return cudaSuccess;
}

std::vector<FeatureOfPlaces> PlacesOf(const std::vector<KeyedFeature>& features) {
  std::vector<FeatureOfPlaces> places;
  int64_t first_place = 0;
  for (const KeyedFeature& feature : features) {
    if (feature.num_ids > 0) places.push_back({first_place, feature.first_id, feature.table});
    first_place += feature.num_ids;
  }
  return places;
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
  const int64_t num_places = NumPlaces(features);
  if (error != cudaSuccess) return error;
  if (num_places == 0) {
    return cudaMemsetAsync(w.first_keys, 0, (num_parts + 1) * sizeof(int64_t), stream);
  }
  const std::vector<FeatureOfPlaces> places_of = PlacesOf(features);
  DeviceArrays arrays(w.features);
  KeyArgs args{};
  args.features = arrays.Add(places_of);
  args.num_features = static_cast<int64_t>(places_of.size());
  args.num_places = num_places;
  args.num_tables = num_tables;
  args.num_ranks = num_ranks;
  args.ids = ids;
  args.keys = w.keys[0];
  args.places = w.places[0];
  if ((error = arrays.Send(stream)) != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>((num_places + kThreads - 1) / kThreads);
  GatherKeysKernel<<<blocks, kThreads, 0, stream>>>(args);

  cub::DoubleBuffer<uint64_t> keys(w.keys[0], w.keys[1]);
  cub::DoubleBuffer<uint32_t> places(w.places[0], w.places[1]);
  const auto count = static_cast<uint32_t>(num_places);
  error = cub::DeviceRadixSort::SortPairs(w.cub, w.cub_bytes, keys, places, count, 0, 64, stream);
  if (error != cudaSuccess) return error;
  args.keys = keys.Current();
  args.places = places.Current();
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
