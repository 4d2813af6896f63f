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
constexpr int kStores = 3,
              kStoreBytes = kWarpSize * kUnroll * 16;  // bulk stores in flight per warp
constexpr int64_t kTileRows = kWarpSize;  // a tile: rows of one part that a warp copies together
constexpr int64_t kTilesPerBlock = 8;     // a launch adds a block for so many tiles

// Blocks of a launch with several chunks. Each block fills one multiprocessor; the others look up
// the chunks that have arrived. Measured on an H200 with 132 multiprocessors, in GB/s:
//
//   blocks                               10   12   16   24   32   56
//   bulk stores, float32                362  363  365  365
//   bulk stores, 16 bits                222  262  329  354
//   bulk stores, single elements, f32              209
//   bulk stores, single elements, 16 b             108
//   stores of words, float32                       276       335  358
//   stores of words, 16 bits                       168       235  295
//
// A step with bulk stores was shortest with 16 blocks.
constexpr int64_t kBulkBlocks = 16;
constexpr int64_t kElementBlocks = 56;
// Stores of words to a peer fill a queue of the multiprocessor, behind which any other kernel on it
// takes twice its time. So these blocks reserve all shared memory, and nothing else runs beside
// them.
constexpr int64_t kWordBlocks = 56;

// The number of elements that a lane reads at once, where rows are aligned to so many.
constexpr int64_t ElementsAtOnce(int64_t from_bytes, int64_t to_bytes) {
  return 16 / std::max(from_bytes, to_bytes);
}

using Stores = BulkStores<kStores, kStoreBytes>;

struct ServeArgs {
  const ServedPart* parts;
  const int64_t* first_tiles;  // [num_parts + 1] the first tile of each part, and the end
  int64_t num_parts;
  const int64_t* requests;
  const int64_t* ends;  // [num_chunks] one past the last tile of each chunk
  int num_chunks;
  uint32_t* taken;   // the number of tiles that warps have taken
  uint32_t* served;  // [num_chunks] the number of tiles that are copied; null: no rank is signalled
  PeerSignals signals;

  __device__ int64_t NumTiles(int chunk) const {
    return ends[chunk] - (chunk == 0 ? 0 : ends[chunk - 1]);
  }
  __device__ void SignalAll(int chunk) const {
    for (int n = 0; n < signals.num_ranks; ++n) {
      if (n != signals.rank) signals.Signal(n, 1 + chunk);
    }
  }
  // Called by one thread per warp: `tiles` more tiles of the chunk are copied. The thread that
  // counts the last tile signals the other ranks.
  __device__ void Count(int chunk, uint32_t tiles) const {
    __threadfence_system();
    if (atomicAdd(served + chunk, tiles) + tiles == NumTiles(chunk)) SignalAll(chunk);
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

// A warp copies the rows of one tile. from: each lane holds the address of one row; null: the row
// reads zeros. `to` is aligned to 16 bytes. Bulk stores need a multiple of 16 bytes, which only the
// last tile of a part may miss.
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
__device__ void ServeTile(const ServeArgs& args, int64_t tile, int lane, Stores* stores) {
  constexpr int kSize = ElementsAtOnce(sizeof(From), sizeof(To));
  const int64_t p = FindOwner(args.first_tiles, args.num_parts, tile);
  const ServedPart part = args.parts[p];
  const int64_t first = (tile - args.first_tiles[p]) * kTileRows;
  const int num_rows = static_cast<int>(min(kTileRows, part.count - first));
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

// A warp takes the next tile from a counter once it has copied one: with tiles dealt out
// beforehand, the slowest warp would end long after the others. The warp that counts a chunk's last
// tile signals the other ranks.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    ServeRowsKernel(const __grid_constant__ ServeArgs args) {
  extern __shared__ __align__(16) char shared[];
  const int lane = threadIdx.x % kWarpSize;
  Stores stores(shared + threadIdx.x / kWarpSize * Stores::kBytesOfWarp, lane);
  const bool signals_peers = args.served != nullptr && lane == 0;
  if (signals_peers && blockIdx.x == 0 && threadIdx.x == 0) {
    for (int chunk = 0; chunk < args.num_chunks; ++chunk) {
      if (args.NumTiles(chunk) == 0) args.SignalAll(chunk);
    }
  }
  const auto take = [&] { return lane == 0 ? atomicAdd(args.taken, 1u) : 0u; };
  uint32_t taken = take(), served = 0;  // served: tiles of the chunk that this warp has copied
  for (int chunk = 0; chunk < args.num_chunks;) {
    const int64_t tile = __shfl_sync(kFullWarp, taken, 0);
    while (chunk < args.num_chunks && tile >= args.ends[chunk]) {
      stores.Finish();
      if (signals_peers && served > 0) args.Count(chunk, served);
      served = 0;
      ++chunk;
    }
    if (chunk == args.num_chunks) break;
    taken = take();  // fetched while this tile is copied
    ServeTile<From, To>(args, tile, lane, &stores);
    ++served;
  }
}

// The most shared memory that a block may have, which is all of a multiprocessor's.
int MostSharedBytes() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

struct Launch {
  unsigned num_blocks;
  int threads, shared_bytes;
};

Launch PlanLaunch(bool in_bulk, bool by_element, bool is_beside, int64_t num_tiles,
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
                wanted = (num_tiles + kTilesPerBlock - 1) / kTilesPerBlock;
  launch.num_blocks =
      static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1)));
  return launch;
}

// first_parts: [num_chunks + 1] the first part of each chunk, and the end. args: all but the
// arrays, which are copied to `scratch`.
cudaError_t Serve(const std::vector<ServedPart>& parts, const std::vector<int64_t>& first_parts,
                  ServeArgs args, bool signals_peers, DataType type, DataType wire, void* scratch,
                  cudaStream_t stream) {
  std::vector<int64_t> first_tiles = {0}, ends;
  bool by_element = false;
  for (const ServedPart& part : parts) {
    by_element |= part.table.dim % ElementsAtOnce(SizeOf(type), SizeOf(wire)) != 0;
    first_tiles.push_back(first_tiles.back() + (part.count + kTileRows - 1) / kTileRows);
  }
  const int64_t num_tiles = first_tiles.back();
  if (num_tiles == 0 && !signals_peers) return cudaSuccess;
  for (size_t c = 1; c < first_parts.size(); ++c) ends.push_back(first_tiles[first_parts[c]]);
  DeviceArrays arrays(scratch);
  args.parts = arrays.Add(parts);
  args.first_tiles = arrays.Add(first_tiles);
  args.num_parts = static_cast<int64_t>(parts.size());
  args.ends = arrays.Add(ends);
  args.num_chunks = static_cast<int>(ends.size());
  args.taken = const_cast<uint32_t*>(arrays.Add(std::vector<uint32_t>(1 + ends.size(), 0)));
  args.served = signals_peers ? args.taken + 1 : nullptr;
  const cudaError_t sent = arrays.Send(stream);
  if (sent != cudaSuccess) return sent;
  const bool is_beside = args.num_chunks > 1;
  return ForDeviceType(type, [&](auto* from) {
    return ForDeviceType(wire, [&](auto* to) {
      const auto kernel = ServeRowsKernel<std::remove_pointer_t<decltype(from)>,
                                          std::remove_pointer_t<decltype(to)>>;
      const bool in_bulk = HasBulkStores(reinterpret_cast<const void*>(kernel));
      const int most_shared = MostSharedBytes();
      const Launch launch = PlanLaunch(in_bulk, by_element, is_beside, num_tiles, most_shared);
      // Every launch sets the same value, since another thread may set it between this call and the
      // launch below.
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
  const std::vector<int64_t> one_chunk = {0, static_cast<int64_t>(parts.size())};
  return Serve(parts, one_chunk, args, /*signals_peers=*/false, type, wire, scratch, stream);
}

cudaError_t ServeChunksCuda(const std::vector<ServedPart>& parts,
                            const std::vector<int64_t>& first_parts, const PeerSignals& signals,
                            const int64_t* requests, DataType type, DataType wire, void* scratch,
                            cudaStream_t stream) {
  ServeArgs args = {};
  args.requests = requests;
  args.signals = signals;
  if (parts.empty()) return cudaSuccess;  // this rank is alone
  return Serve(parts, first_parts, args, /*signals_peers=*/true, type, wire, scratch, stream);
}

}  // namespace group_embedding
