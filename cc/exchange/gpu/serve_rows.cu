#include <algorithm>
#include <type_traits>

#include "core/bulk_store.cuh"
#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "exchange/gpu/serve_rows.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 1024;
constexpr int kUnroll = 4;
constexpr int kStores = 3, kStoreBytes = kWarpSize * kUnroll * 16;  // of a warp, under way
constexpr int64_t kChunkRows = kWarpSize;  // of one part, which a warp copies at a time
constexpr int64_t kChunksToStart = 8;      // worth another block

// Where there are several courses, the multiprocessors that serve beside those that look up. Of an
// H200's 132, with rows of float32 and of 16 bits, 10 reach 362 and 222 GB/s, 12 363 and 262, 16
// 365 and 329, 24 365 and 354: with 16 all was there first.
constexpr int64_t kBulkBlocks = 16;
// Where rows are read element by element 16 reach 209 and 108 GB/s.
constexpr int64_t kElementBlocks = 56;
// Without bulk stores 16 reach 276 and 168 GB/s, 32 335 and 235, and 56 358 and 295. There whatever
// else they ran would wait in the queue of what goes to peers and take twice its time, so that they
// run nothing else: those that serve have all shared memory.
constexpr int64_t kWordBlocks = 56;

// Elements of a row that a lane reads at once, if rows are so aligned.
constexpr int64_t ElementsAtOnce(int64_t from_bytes, int64_t to_bytes) {
  return 16 / std::max(from_bytes, to_bytes);
}

using Stores = BulkStores<kStores, kStoreBytes>;

struct ServeArgs {
  const ServedPart* parts;
  const int64_t* first_chunks;  // [num_parts + 1] of each, and the end
  int64_t num_parts;
  const int64_t* requests;
  const int64_t* ends;  // [num_courses] of their chunks
  int num_courses;
  uint32_t* taken;   // chunks, so far
  uint32_t* served;  // [num_courses] chunks of each, so far; null: nobody is told
  PeerSignals signals;

  __device__ int64_t NumChunks(int course) const {
    return ends[course] - (course == 0 ? 0 : ends[course - 1]);
  }
  __device__ void TellAll(int course) const {
    for (int n = 0; n < signals.num_ranks; ++n) {
      if (n != signals.rank) signals.Tell(n, 1 + course);
    }
  }
  // Of one thread: so many chunks more are served.
  __device__ void Count(int course, uint32_t chunks) const {
    __threadfence_system();
    if (atomicAdd(served + course, chunks) + chunks == NumChunks(course)) TellAll(course);
  }
};

template <typename T, int kSize>
using VectorOf = Vector<T, kSize* static_cast<int>(sizeof(T))>;

template <typename From, typename To, int kSize>
__device__ VectorOf<To, kSize> Convert(const VectorOf<From, kSize>& from) {
  if constexpr (std::is_same_v<From, To>) {
    return from;
  } else {
    float values[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = from[i];
    return VectorOf<To, kSize>::Round(values);
  }
}

// A warp copies the rows of a chunk; a lane knows where one of them is, null where nowhere. `to` is
// aligned to 16 bytes. In bulk go multiples of 16 bytes, which only the end of a part may not be.
template <typename From, typename To, int kSize>
__device__ void CopyRows(const From* from, To* to, int num_rows, int dim, int lane, bool in_bulk,
                         Stores* stores) {
  const int vectors_per_row = dim / kSize;
  const int num_vectors = num_rows * vectors_per_row;
  constexpr int kStep = kWarpSize * kUnroll;
  constexpr int kVectorBytes = kSize * static_cast<int>(sizeof(To));
  static_assert(kStep * kVectorBytes <= kStoreBytes && kStep * kVectorBytes % 16 == 0);
  for (int first = 0; first < num_vectors; first += kStep) {
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
    To* const arrive = to + int64_t{first} * kSize;
    const int count = min(kStep, num_vectors - first);
    To* const write = in_bulk ? reinterpret_cast<To*>(stores->Next()) : arrive;
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int at = k * kWarpSize + lane;
      if (at >= count) continue;
      const auto converted = Convert<From, To, kSize>(vectors[k]);
      *reinterpret_cast<typename VectorOf<To, kSize>::Word*>(write + at * kSize) = converted.word;
    }
    if (in_bulk) stores->Store(arrive, count * kVectorBytes);
  }
}

template <typename From, typename To>
__device__ void ServeChunk(const ServeArgs& args, int64_t chunk, int lane, Stores* stores) {
  constexpr int kSize = ElementsAtOnce(sizeof(From), sizeof(To));
  const int64_t p = FindOwner(args.first_chunks, args.num_parts, chunk);
  const ServedPart part = args.parts[p];
  const int64_t first = (chunk - args.first_chunks[p]) * kChunkRows;
  const int num_rows = static_cast<int>(min(kChunkRows, part.count - first));
  const int dim = static_cast<int>(part.table.dim);
  const int64_t row = args.requests[part.first + first + min(lane, num_rows - 1)];
  const bool is_there = row >= 0 && row < part.table.num_rows;
  const From* from = is_there ? static_cast<const From*>(part.table.rows) + row * dim : nullptr;
  To* to = reinterpret_cast<To*>(part.to) + first * dim;
  const auto address = reinterpret_cast<uintptr_t>(part.table.rows);
  const bool in_bulk = kHasBulkStores && num_rows * dim * sizeof(To) % 16 == 0;
  if (dim % kSize == 0 && address % (kSize * sizeof(From)) == 0) {
    CopyRows<From, To, kSize>(from, to, num_rows, dim, lane, in_bulk, stores);
  } else {
    CopyRows<From, To, 1>(from, to, num_rows, dim, lane, in_bulk, stores);
  }
}

// A warp takes the next chunk once it has copied one: of those dealt out beforehand the slowest
// warp's would come long after the others. Who has served the last of a course tells the others.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    ServeRowsKernel(const __grid_constant__ ServeArgs args) {
  extern __shared__ __align__(16) char shared[];
  const int lane = threadIdx.x % kWarpSize;
  Stores stores(shared + threadIdx.x / kWarpSize * Stores::kBytesOfWarp, lane);
  const bool tells = args.served != nullptr && lane == 0;
  if (tells && blockIdx.x == 0 && threadIdx.x == 0) {
    for (int course = 0; course < args.num_courses; ++course) {
      if (args.NumChunks(course) == 0) args.TellAll(course);
    }
  }
  const auto take = [&] { return lane == 0 ? atomicAdd(args.taken, 1u) : 0u; };
  uint32_t taken = take(), served = 0;  // served: of the course, by this warp
  for (int course = 0; course < args.num_courses;) {
    const int64_t chunk = __shfl_sync(kFullWarp, taken, 0);
    while (course < args.num_courses && chunk >= args.ends[course]) {
      stores.Finish();
      if (tells && served > 0) args.Count(course, served);
      served = 0;
      ++course;
    }
    if (course == args.num_courses) break;
    taken = take();  // the next one, which is there once this one is copied
    ServeChunk<From, To>(args, chunk, lane, &stores);
    ++served;
  }
}

// That a block may have, which is all that a multiprocessor has.
int MostSharedBytes() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

// What the kernel is launched with.
struct Launch {
  unsigned num_blocks;
  int threads, shared_bytes;
};

Launch PlanLaunch(bool in_bulk, bool by_element, bool is_beside, int64_t num_chunks,
                  int most_shared) {
  Launch launch = {1, kThreads, is_beside ? most_shared : 0};
  if (in_bulk) {
    launch.threads = std::min(kThreads, most_shared / Stores::kBytesOfWarp * kWarpSize);
    launch.shared_bytes = launch.threads / kWarpSize * Stores::kBytesOfWarp;
  }
  const int64_t beside = !in_bulk     ? kWordBlocks
                         : by_element ? kElementBlocks
                                      : kBulkBlocks,
                all = NumMultiprocessors(), most = is_beside ? std::min(beside, all / 2) : all,
                wanted = (num_chunks + kChunksToStart - 1) / kChunksToStart;
  launch.num_blocks =
      static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1)));
  return launch;
}

// first_parts: those of courses, and their end. args: but for the arrays, which travel to
// `scratch`.
cudaError_t Serve(const std::vector<ServedPart>& parts, const std::vector<int64_t>& first_parts,
                  ServeArgs args, bool tells, DataType type, DataType wire, void* scratch,
                  cudaStream_t stream) {
  std::vector<int64_t> first_chunks = {0}, ends;
  bool by_element = false;
  for (const ServedPart& part : parts) {
    by_element |= part.table.dim % ElementsAtOnce(SizeOf(type), SizeOf(wire)) != 0;
    first_chunks.push_back(first_chunks.back() + (part.count + kChunkRows - 1) / kChunkRows);
  }
  const int64_t num_chunks = first_chunks.back();
  if (num_chunks == 0 && !tells) return cudaSuccess;
  for (size_t c = 1; c < first_parts.size(); ++c) ends.push_back(first_chunks[first_parts[c]]);
  DeviceArrays arrays(scratch);
  args.parts = arrays.Add(parts);
  args.first_chunks = arrays.Add(first_chunks);
  args.num_parts = static_cast<int64_t>(parts.size());
  args.ends = arrays.Add(ends);
  args.num_courses = static_cast<int>(ends.size());
  args.taken = const_cast<uint32_t*>(arrays.Add(std::vector<uint32_t>(1 + ends.size(), 0)));
  args.served = tells ? args.taken + 1 : nullptr;
  const cudaError_t sent = arrays.Send(stream);
  if (sent != cudaSuccess) return sent;
  const bool is_beside = args.num_courses > 1;
  return ForDeviceType(type, [&](auto* from) {
    return ForDeviceType(wire, [&](auto* to) {
      const auto kernel = ServeRowsKernel<std::remove_pointer_t<decltype(from)>,
                                          std::remove_pointer_t<decltype(to)>>;
      const bool in_bulk = HasBulkStores(reinterpret_cast<const void*>(kernel));
      const int most_shared = MostSharedBytes();
      const Launch launch = PlanLaunch(in_bulk, by_element, is_beside, num_chunks, most_shared);
      // The same for every launch, as another thread may be between this and its own.
      const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared);
      if (error != cudaSuccess) return error;
      kernel<<<launch.num_blocks, launch.threads, launch.shared_bytes, stream>>>(args);
      return cudaGetLastError();
    });
  });
}

}  // namespace

int64_t ServeRowsScratchBytes(int64_t num_parts) {
  return AlignScratch(num_parts * static_cast<int64_t>(sizeof(ServedPart))) +
         2 * AlignScratch((num_parts + 1) * 8) + AlignScratch((num_parts + 1) * 4);
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
