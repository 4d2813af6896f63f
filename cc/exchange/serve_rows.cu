#include <algorithm>
#include <type_traits>

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "exchange/serve_rows.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 1024;
constexpr int kUnroll = 4;
constexpr int64_t kWarpsToStart = 8;  // whose rows are worth another block

// Who writes to a peer holds up what other warps of its multiprocessor read and write: beside rows
// that were served by all of them, work took twice its time and more. So where there are several
// courses some serve, and nothing else runs there, as they have all shared memory. Of an H200's
// 132, with rows of float32 and of 16 bits, 16 reached 276 and 168 GB/s, 32 335 and 235, and 56 358
// and 295.
constexpr int64_t kServingBlocks = 56;

struct ServeArgs {
  const ServedPart* parts;
  const int64_t* before;  // [num_parts + 1] rows served before each
  int64_t num_parts;
  const int64_t* requests;
  const int64_t* first_parts;  // [num_courses + 1]
  int num_courses;
  uint32_t* served;  // [num_courses] chunks of each, so far; null: nobody is told
  PeerSignals signals;

  __device__ int64_t FirstRow(int course) const { return before[first_parts[course]]; }
  __device__ void TellAll(int course) const {
    for (int n = 0; n < signals.num_ranks; ++n) {
      if (n != signals.rank) signals.Tell(n, 1 + course);
    }
  }
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

// At most 32 rows, those from `at` on.
template <typename From, typename To>
__device__ void ServeChunk(const ServeArgs& args, int64_t at, int64_t stop, int lane) {
  constexpr int kSize = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  while (at < stop) {
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

// Warps take 32 rows in turn. Who has served the last of a course tells the others.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    ServeRowsKernel(const __grid_constant__ ServeArgs args) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = int64_t{gridDim.x} * kThreads / kWarpSize;
  // How many chunks come before the warp's next one.
  int64_t turn = int64_t{threadIdx.x / kWarpSize} * gridDim.x + blockIdx.x;
  for (int course = 0; course < args.num_courses; ++course) {
    const int64_t first = args.FirstRow(course), end = args.FirstRow(course + 1);
    const int64_t num_chunks = (end - first + kWarpSize - 1) / kWarpSize;
    uint32_t served = 0;
    for (; turn < num_chunks; turn += num_warps, ++served) {
      const int64_t at = first + turn * kWarpSize;
      ServeChunk<From, To>(args, at, min(at + kWarpSize, end), lane);
    }
    turn -= num_chunks;
    if (args.served == nullptr) continue;
    __syncwarp();
    if (lane != 0) continue;
    if (num_chunks == 0 && blockIdx.x == 0 && threadIdx.x == 0) args.TellAll(course);
    if (served == 0) continue;
    __threadfence_system();
    if (atomicAdd(args.served + course, served) + served == num_chunks) args.TellAll(course);
  }
}

// That a block may have, which is all that a multiprocessor has.
int MostSharedBytes() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

// args: but for the arrays, which travel to `scratch`.
cudaError_t Serve(const std::vector<ServedPart>& parts, const std::vector<int64_t>& first_parts,
                  ServeArgs args, bool tells, DataType type, DataType wire, void* scratch,
                  cudaStream_t stream) {
  std::vector<int64_t> before = {0};
  for (const ServedPart& part : parts) before.push_back(before.back() + part.count);
  if (before.back() == 0 && !tells) return cudaSuccess;
  DeviceArrays arrays(scratch);
  args.parts = arrays.Add(parts);
  args.before = arrays.Add(before);
  args.num_parts = static_cast<int64_t>(parts.size());
  args.first_parts = arrays.Add(first_parts);
  args.num_courses = static_cast<int>(first_parts.size()) - 1;
  const uint32_t* served = arrays.Add(std::vector<uint32_t>(args.num_courses, 0));
  args.served = tells ? const_cast<uint32_t*>(served) : nullptr;
  const cudaError_t sent = arrays.Send(stream);
  if (sent != cudaSuccess) return sent;
  const int64_t num_chunks = before.back() / kWarpSize + args.num_courses;
  const bool is_beside = args.num_courses > 1;
  const int64_t all = NumMultiprocessors(),
                most = is_beside ? std::min(kServingBlocks, all / 2) : all;
  const int64_t num_blocks = std::min((num_chunks + kWarpsToStart - 1) / kWarpsToStart, most);
  return ForDeviceType(type, [&](auto* from) {
    return ForDeviceType(wire, [&](auto* to) {
      const auto kernel = ServeRowsKernel<std::remove_pointer_t<decltype(from)>,
                                          std::remove_pointer_t<decltype(to)>>;
      const int shared_bytes = is_beside ? MostSharedBytes() : 0;
      const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      if (error != cudaSuccess) return error;
      kernel<<<static_cast<unsigned>(num_blocks), kThreads, shared_bytes, stream>>>(args);
      return cudaGetLastError();
    });
  });
}

}  // namespace

int64_t ServeRowsScratchBytes(int64_t num_parts) {
  return AlignScratch(num_parts * static_cast<int64_t>(sizeof(ServedPart))) +
         2 * AlignScratch((num_parts + 1) * 8) + AlignScratch(num_parts * 4);
}

cudaError_t ServeRowsCuda(const std::vector<ServedPart>& parts, const int64_t* requests,
                          DataType type, DataType wire, void* scratch, cudaStream_t stream) {
  ServeArgs args = {};
  args.requests = requests;
  const std::vector<int64_t> one_course = {0, static_cast<int64_t>(parts.size())};
  return Serve(parts, one_course, args, /*tells=*/false, type, wire, scratch, stream);
}

cudaError_t ServeCoursesCuda(const std::vector<ServedPart>& parts,
                             const std::vector<int64_t>& first_parts, const PeerSignals& signals,
                             const int64_t* requests, DataType type, DataType wire, void* scratch,
                             cudaStream_t stream) {
  ServeArgs args = {};
  args.requests = requests;
  args.signals = signals;
  if (parts.empty()) return cudaSuccess;  // there are no other ranks
  return Serve(parts, first_parts, args, /*tells=*/true, type, wire, scratch, stream);
}

}  // namespace group_embedding
