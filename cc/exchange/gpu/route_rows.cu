#include <cub/block/block_scan.cuh>

#include "core/descriptors.cuh"
#include "exchange/gpu/route_rows.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kEntriesPerThread = 8;

// RoutedRows as the kernels read it.
struct RouteArgs : RoutedRows {
  __device__ int64_t KeyAt(int64_t entry) const {
    return sorted.has_wide_keys
               ? static_cast<int64_t>(static_cast<const uint64_t*>(sorted.keys)[entry])
               : static_cast<int64_t>(static_cast<const uint32_t*>(sorted.keys)[entry]);
  }
  // The last part that begins at or before unique row u.
  __device__ int64_t PartOf(int64_t u) const {
    return FindOwnerAlone(num_parts, u, [&](int64_t part) { return sorted.num_unique[part]; });
  }
};

// A thread finds the local row, or the key, of one unique row after the other.
__global__ void __launch_bounds__(kThreads)
    WriteLocalRowsKernel(const __grid_constant__ RouteArgs args,
                         const __grid_constant__ RoutedKeys keys) {
  const int64_t num_unique = args.sorted.num_unique[args.num_parts];
  for (int64_t u = int64_t{blockIdx.x} * kThreads + threadIdx.x; u < num_unique;
       u += int64_t{gridDim.x} * kThreads) {
    const uint32_t first = args.sorted.segments[u];
    const int64_t part = args.PartOf(u);
    const int64_t local_row = args.KeyAt(first) - args.sorted.first_keys[part];
    args.local_rows[u] = local_row;
    if (keys.times == nullptr) continue;
    keys.times[u] = args.sorted.segments[u + 1] - first;
    const int64_t* first_key = keys.numbered.first_keys + part;
    if (first_key[0] < first_key[1]) {
      args.local_rows[u] = keys.numbered.keys[first_key[0] + local_row];
    }
  }
}

// A thread writes the address of one unique row after the other.
__global__ void __launch_bounds__(kThreads)
    AddressUniqueRowsKernel(RouteArgs args, const PartAddresses* parts) {
  const int64_t num_unique = args.sorted.num_unique[args.num_parts];
  for (int64_t u = int64_t{blockIdx.x} * kThreads + threadIdx.x; u < num_unique;
       u += int64_t{gridDim.x} * kThreads) {
    const int64_t p = args.PartOf(u);
    const PartAddresses part = parts[p];
    const int64_t i = part.in_place ? args.local_rows[u] : u - args.sorted.num_unique[p];
    args.unique_addresses[u] = part.base + i * part.stride;
  }
}

// A block goes over consecutive sorted entries, a thread over kEntriesPerThread of them, and hands
// each the address of its unique row. A scan over the block counts the rows that begin before an
// entry.
__global__ void __launch_bounds__(kThreads) ScatterAddressesKernel(RouteArgs args) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage scan;
  __shared__ int64_t first_unique;
  const int64_t num_unique = args.sorted.num_unique[args.num_parts];
  const int64_t num_entries = num_unique == 0 ? 0 : args.sorted.segments[num_unique];
  const int64_t block_begin = int64_t{blockIdx.x} * kThreads * kEntriesPerThread;
  if (block_begin >= num_entries) return;
  if (threadIdx.x == 0) {  // the last unique row that begins at or before the block
    first_unique =
        FindOwnerAlone(num_unique, block_begin, [&](int64_t u) { return args.sorted.segments[u]; });
  }
  const int64_t begin = block_begin + threadIdx.x * kEntriesPerThread;
  bool starts[kEntriesPerThread];
  int num_starts = 0;
  int64_t before = begin > block_begin && begin < num_entries ? args.KeyAt(begin - 1) : 0;
#pragma unroll
  for (int e = 0; e < kEntriesPerThread; ++e) {
    const int64_t entry = begin + e;
    const int64_t key = entry < num_entries ? args.KeyAt(entry) : before;
    starts[e] = entry > block_begin && key != before;
    num_starts += starts[e];
    before = key;
  }
  int rows_before = 0;
  Scan(scan).ExclusiveSum(num_starts, rows_before);
  __syncthreads();
  int64_t unique = first_unique + rows_before;
#pragma unroll
  for (int e = 0; e < kEntriesPerThread; ++e) {
    unique += starts[e];
    if (begin + e < num_entries) {
      args.id_addresses[args.positions[begin + e]] = args.unique_addresses[unique];
    }
  }
}

struct Workspace {
  char* sort;
  uint32_t* positions;
  uint32_t* samples;
  int64_t* unique_addresses;
  int64_t bytes;
};

Workspace LayOut(const Group& group, const SortOptions& options, void* memory) {
  Workspace w;
  int64_t at = 0;
  auto take = [&](int64_t bytes) {
    char* part = static_cast<char*>(memory) + at;
    at += AlignScratch(bytes);
    return part;
  };
  w.sort = take(SortRowsWorkspaceBytesCuda(group, options));
  w.positions = reinterpret_cast<uint32_t*>(take(group.batch.num_ids * 4));
  w.samples = reinterpret_cast<uint32_t*>(take(group.batch.num_ids * 4));
  w.unique_addresses = reinterpret_cast<int64_t*>(take(group.batch.num_ids * 8));
  w.bytes = at;
  return w;
}

unsigned SeveralEach() { return static_cast<unsigned>(8 * NumMultiprocessors()); }

}  // namespace

GroupOfParts::GroupOfParts(const Group& whole, int64_t num_ranks) : group(whole) {
  for (int64_t n = 0; n < num_ranks; ++n) {
    for (int64_t t = 0; t < whole.num_tables; ++t) {
      tables.push_back(whole.tables[t]);
      tables.back().num_rows = (whole.tables[t].num_rows + num_ranks - 1) / num_ranks;
    }
    for (int64_t f = 0; f < whole.num_features; ++f) {
      features.push_back(whole.features[f]);
      features.back().table += static_cast<int32_t>(n * whole.num_tables);
    }
  }
}

Group GroupOfParts::get() const {
  Group parts = group;
  parts.tables = tables.data();
  parts.num_tables = static_cast<int64_t>(tables.size());
  parts.features = features.data();
  parts.num_features = static_cast<int64_t>(features.size());
  return parts;
}

int64_t RouteRowsWorkspaceBytesCuda(const Group& group, int64_t num_ranks) {
  SortOptions options;
  options.num_owners = num_ranks;
  return LayOut(group, options, nullptr).bytes;
}

cudaError_t RouteRowsCuda(const Group& group, int64_t num_ranks, void* workspace,
                          const RoutedKeys& keys, int64_t* local_rows, int64_t* id_addresses,
                          Fault* fault, RoutedRows* routed, cudaStream_t stream) {
  SortOptions options;
  options.num_owners = num_ranks;
  const Workspace w = LayOut(group, options, workspace);
  options.positions = w.positions;
  options.samples = w.samples;
  options.id_addresses = id_addresses;
  options.fault = fault;
  const cudaError_t error = SortRowsCuda(group, w.sort, &routed->sorted, stream, options);
  if (error != cudaSuccess) return error;
  routed->local_rows = local_rows;
  routed->id_addresses = id_addresses;
  routed->positions = w.positions;
  routed->unique_addresses = w.unique_addresses;
  routed->num_parts = num_ranks * group.num_tables;
  routed->num_ids = group.batch.num_ids;
  if (routed->num_ids == 0) return cudaSuccess;
  WriteLocalRowsKernel<<<SeveralEach(), kThreads, 0, stream>>>(RouteArgs{*routed}, keys);
  return cudaGetLastError();
}

cudaError_t WriteAddressesCuda(const RoutedRows& routed, const PartAddresses* parts,
                               cudaStream_t stream) {
  if (routed.num_ids == 0) return cudaSuccess;
  const RouteArgs args{routed};
  AddressUniqueRowsKernel<<<SeveralEach(), kThreads, 0, stream>>>(args, parts);
  constexpr int64_t kEntriesPerBlock = kThreads * kEntriesPerThread;
  const int64_t num_blocks = (routed.num_ids + kEntriesPerBlock - 1) / kEntriesPerBlock;
  ScatterAddressesKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace group_embedding
