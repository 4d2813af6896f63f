#include <algorithm>
#include <type_traits>

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "exchange/serve_rows.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;
constexpr int kBlocks = 4;  // per multiprocessor

struct ServeArgs {
  const ServedPart* parts;
  const int64_t* before;  // [num_parts + 1] rows served before each
  int64_t num_parts;
  const int64_t* requests;
};

template <typename T, int kSize>
using VectorOf = Vector<T, kSize* static_cast<int>(sizeof(T))>;

template <typename From, typename To, int kSize>
__device__ VectorOf<To, kSize> Convert(const VectorOf<From, kSize>& from) {
  if constexpr (std::is_same_v<From, To>) return from;
  float values[kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) values[i] = from[i];
  return VectorOf<To, kSize>::Round(values);
}

// A warp copies at most 32 rows of one part; a lane knows where one of them is, null where nowhere.
template <typename From, typename To, int kSize>
__device__ void CopyRows(const From* from, To* to, int num_rows, int dim, int lane) {
  const int vectors_per_row = dim / kSize;
  const int num_vectors = num_rows * vectors_per_row;
  for (int first = 0; first < num_vectors; first += kWarpSize * kUnroll) {
    VectorOf<From, kSize> vectors[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int at = first + k * kWarpSize + lane;
      const int row = min(at / vectors_per_row, num_rows - 1);
      const From* of_row = reinterpret_cast<const From*>(
          __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(from), row));
      vectors[k] = VectorOf<From, kSize>::LoadIf(at < num_vectors && of_row != nullptr,
                                                 of_row + (at - row * vectors_per_row) * kSize);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int at = first + k * kWarpSize + lane;
      if (at >= num_vectors) continue;
      const auto converted = Convert<From, To, kSize>(vectors[k]);
      *reinterpret_cast<typename VectorOf<To, kSize>::Word*>(to + int64_t{at} * kSize) =
          converted.word;
    }
  }
}

// Warps take 32 rows in turn.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) ServeRowsKernel(const ServeArgs args) {
  constexpr int kSize = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  const int64_t count = args.before[args.num_parts];
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kThreads / kWarpSize;
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  for (int64_t chunk = warp * kWarpSize; chunk < count; chunk += num_warps * kWarpSize) {
    const int64_t stop = min(chunk + kWarpSize, count);
    for (int64_t at = chunk; at < stop;) {
      const int64_t p = FindOwner(args.before, args.num_parts, at);
      const ServedPart part = args.parts[p];
      const int64_t skipped = at - args.before[p];
      const int num_rows = static_cast<int>(min(stop - at, part.count - skipped));
      const int dim = static_cast<int>(part.table.dim);
      const int64_t row = args.requests[part.first + skipped + min(lane, num_rows - 1)];
      const bool is_there = row >= 0 && row < part.table.num_rows;
      const From* from = is_there ? static_cast<const From*>(part.table.rows) + row * dim : nullptr;
      To* to = reinterpret_cast<To*>(part.to) + skipped * dim;
      const auto address = reinterpret_cast<uintptr_t>(part.table.rows);
      if (dim % kSize == 0 && address % (kSize * sizeof(From)) == 0) {
        CopyRows<From, To, kSize>(from, to, num_rows, dim, lane);
      } else {
        CopyRows<From, To, 1>(from, to, num_rows, dim, lane);
      }
      at += num_rows;
    }
  }
}

}  // namespace

int64_t ServeRowsScratchBytes(int64_t num_parts) {
  return AlignScratch(num_parts * static_cast<int64_t>(sizeof(ServedPart))) +
         AlignScratch((num_parts + 1) * 8);
}

cudaError_t ServeRowsCuda(const std::vector<ServedPart>& parts, const int64_t* requests,
                          DataType type, DataType wire, void* scratch, cudaStream_t stream) {
  std::vector<int64_t> before = {0};
  for (const ServedPart& part : parts) before.push_back(before.back() + part.count);
  if (before.back() == 0) return cudaSuccess;
  DeviceArrays arrays(scratch);
  ServeArgs args = {};
  args.parts = arrays.Add(parts);
  args.before = arrays.Add(before);
  args.num_parts = static_cast<int64_t>(parts.size());
  args.requests = requests;
  const cudaError_t sent = arrays.Send(stream);
  if (sent != cudaSuccess) return sent;
  const int64_t num_blocks =
      std::min((before.back() + kThreads - 1) / kThreads, kBlocks * NumMultiprocessors());
  return ForDeviceType(type, [&](auto* from) {
    return ForDeviceType(wire, [&](auto* to) {
      using From = std::remove_pointer_t<decltype(from)>;
      using To = std::remove_pointer_t<decltype(to)>;
      ServeRowsKernel<From, To><<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(args);
      return cudaGetLastError();
    });
  });
}

}  // namespace group_embedding
