#include <cub/block/block_scan.cuh>

#include "core/descriptors.cuh"
#include "fused/row_addresses.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kEntriesPerThread = 8;

struct ScatterArgs {
  SortedRows sorted;
  int64_t num_tables;
  const uint32_t* positions;        // [num_ids]
  const int64_t* unique_addresses;  // [num_unique]
  int64_t* id_addresses;            // [num_ids] written
};

// A block goes over consecutive sorted entries, a thread over kEntriesPerThread of them, and hands
// each the address of its unique row. A scan over the block counts the rows that begin before an
// entry.
__global__ void __launch_bounds__(kThreads) ScatterAddressesKernel(ScatterArgs args) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage scan;
  __shared__ int64_t first_unique;
  const int64_t num_unique = args.sorted.num_unique[args.num_tables];
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
  int64_t before = begin > block_begin && begin < num_entries ? KeyAt(args.sorted, begin - 1) : 0;
#pragma unroll
  for (int e = 0; e < kEntriesPerThread; ++e) {
    const int64_t entry = begin + e;
    const int64_t key = entry < num_entries ? KeyAt(args.sorted, entry) : before;
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

}  // namespace

cudaError_t ScatterAddressesCuda(const SortedRows& sorted, int64_t num_tables, int64_t num_ids,
                                 const uint32_t* positions, const int64_t* unique_addresses,
                                 int64_t* id_addresses, cudaStream_t stream) {
  if (num_ids == 0) return cudaSuccess;
  constexpr int64_t kEntriesPerBlock = kThreads * kEntriesPerThread;
  const int64_t num_blocks = (num_ids + kEntriesPerBlock - 1) / kEntriesPerBlock;
  ScatterAddressesKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(
      {sorted, num_tables, positions, unique_addresses, id_addresses});
  return cudaGetLastError();
}

}  // namespace group_embedding
