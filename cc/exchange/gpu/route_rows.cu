#include "core/descriptors.cuh"
#include "exchange/gpu/route_rows.h"
#include "fused/row_addresses.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;

// RoutedRows as the kernels read it.
struct RouteArgs : RoutedRows {
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
    const int64_t local_row = KeyAt(args.sorted, first) - args.sorted.first_keys[part];
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
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return ScatterAddressesCuda(routed.sorted, routed.num_parts, routed.num_ids, routed.positions,
                              routed.unique_addresses, routed.id_addresses, stream);
}

}  // namespace group_embedding
