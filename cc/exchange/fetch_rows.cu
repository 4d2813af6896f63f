#include <cub/block/block_scan.cuh>

#include "core/descriptors.cuh"
#include "exchange/fetch_rows.h"
#include "exchange/part_bytes.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;

struct FetchArgs {
  RoutedRows routed;
  const PartSource* sources;
  const PartPlace* parts;
  int64_t first_own, end_own;  // parts of this rank
};

// One block finds where each part begins: sums of bytes before it.
__global__ void __launch_bounds__(kThreads)
    PlacePartsKernel(FetchArgs args, char* fetched, PartPlace* parts) {
  using Scan = cub::BlockScan<int64_t, kThreads>;
  __shared__ typename Scan::TempStorage scan;
  const int64_t* num_unique = args.routed.sorted.num_unique;
  int64_t before = 0;
  for (int64_t first = 0; first < args.routed.num_parts; first += kThreads) {
    const int64_t p = first + threadIdx.x;
    const bool is_there = p < args.routed.num_parts;
    const PartSource source = is_there ? args.sources[p] : PartSource{};
    const bool in_place = is_there && p >= args.first_own && p < args.end_own;
    int64_t bytes = 0;
    if (is_there && !in_place)
      bytes = PartBytes(num_unique[p + 1] - num_unique[p], source.row_bytes);
    int64_t offset, total;
    Scan(scan).ExclusiveSum(bytes, offset, total);
    if (is_there) {
      const char* base = in_place ? source.rows : fetched + before + offset;
      parts[p] = {reinterpret_cast<int64_t>(base), source.row_bytes, in_place};
    }
    before += total;
    __syncthreads();
  }
}

// A warp copies rows of one part, at most 32 at a time; a lane knows where one of them is.
template <typename Word>
__device__ void CopyRows(const char* from, char* to, int num_rows, int row_bytes, int lane) {
  const int words_per_row = row_bytes / static_cast<int>(sizeof(Word));
  const int num_words = num_rows * words_per_row;
  for (int first = 0; first < num_words; first += kWarpSize * kUnroll) {
    Word words[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int word = first + k * kWarpSize + lane;
      const int row = min(word / words_per_row, num_rows - 1);
      const char* of_row = reinterpret_cast<const char*>(
          __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(from), row));
      if (word < num_words) {
        words[k] = __ldg(reinterpret_cast<const Word*>(of_row) + (word - row * words_per_row));
      }
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int word = first + k * kWarpSize + lane;
      if (word < num_words) reinterpret_cast<Word*>(to)[word] = words[k];
    }
  }
}

// Warps take chunks of unique rows in turn, from the rank that follows this one on: so ranks do not
// all read from the same one at a time. Own rows, which come last, are left where they are.
__global__ void __launch_bounds__(kThreads) FetchRowsKernel(FetchArgs args) {
  const int64_t* num_unique = args.routed.sorted.num_unique;
  const int64_t all = num_unique[args.routed.num_parts];
  const int64_t start = num_unique[args.end_own];
  const int64_t count = all - (start - num_unique[args.first_own]);
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kThreads / kWarpSize;
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  for (int64_t chunk = warp * kWarpSize; chunk < count; chunk += num_warps * kWarpSize) {
    int64_t at = chunk;
    const int64_t stop = min(chunk + kWarpSize, count);
    while (at < stop) {
      const int64_t u = start + at < all ? start + at : start + at - all;
      const int64_t p = FindOwner(num_unique, args.routed.num_parts, u);
      const int num_rows = static_cast<int>(min(stop - at, num_unique[p + 1] - u));
      const PartSource source = args.sources[p];
      const int64_t row = args.routed.local_rows[u + min(lane, num_rows - 1)];
      const char* from = source.rows + row * source.row_bytes;
      char* to =
          reinterpret_cast<char*>(args.parts[p].base) + (u - num_unique[p]) * source.row_bytes;
      const int row_bytes = static_cast<int>(source.row_bytes);
      if (row_bytes % 16 == 0) {
        CopyRows<uint4>(from, to, num_rows, row_bytes, lane);
      } else if (row_bytes % 4 == 0) {
        CopyRows<uint32_t>(from, to, num_rows, row_bytes, lane);
      } else {
        CopyRows<uint16_t>(from, to, num_rows, row_bytes, lane);
      }
      at += num_rows;
    }
  }
}

FetchArgs ArgsOf(const RoutedRows& routed, const PartSource* sources, const PartPlace* parts,
                 int64_t num_tables, int rank) {
  return {routed, sources, parts, rank * num_tables, (rank + 1) * num_tables};
}

}  // namespace

cudaError_t PlacePartsCuda(const RoutedRows& routed, const PartSource* sources, int64_t num_tables,
                           int rank, char* fetched, PartPlace* parts, cudaStream_t stream) {
  const FetchArgs args = ArgsOf(routed, sources, nullptr, num_tables, rank);
  PlacePartsKernel<<<1, kThreads, 0, stream>>>(args, fetched, parts);
  return cudaGetLastError();
}

cudaError_t FetchRowsCuda(const RoutedRows& routed, const PartSource* sources,
                          const PartPlace* parts, int64_t num_tables, int rank,
                          cudaStream_t stream) {
  if (routed.num_ids == 0) return cudaSuccess;
  // Enough to fill the link, and room beside them for kernels that work on memory.
  const unsigned num_blocks = static_cast<unsigned>(2 * NumMultiprocessors());
  FetchRowsKernel<<<num_blocks, kThreads, 0, stream>>>(
      ArgsOf(routed, sources, parts, num_tables, rank));
  return cudaGetLastError();
}

}  // namespace group_embedding
