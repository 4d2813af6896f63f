#include <algorithm>

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "fused/group_lookup_grad.h"
#include "fused/host_rows.h"
#include "fused/row_addresses.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
constexpr int kRowsAtOnce = 4;  // rows that a warp reads before it writes the first
constexpr int64_t kBlocksPerMultiprocessor = 4;
constexpr int64_t kMinIds = 1024;                // of a batch that is worth a sort
constexpr int64_t kMaxBytes = int64_t{1} << 30;  // of fetched rows; those beyond are read in place

// A table's rows, as the kernel needs them.
struct HostTable {
  int64_t address;
  int64_t row_bytes;
};

struct FetchArgs {
  SortedRows sorted;        // of ids whose rows are in host memory
  const HostTable* tables;  // [num_tables]
  int64_t num_tables;
  char* fetched;  // [capacity] rows, `stride` bytes apart
  int64_t stride;
  int64_t capacity;
  int64_t* unique_addresses;  // [num_unique] written: where lookups read each unique row
};

// One unique row: its address in host memory, and the bytes to fetch, 0 for a row that is read in
// place.
struct RowToFetch {
  int64_t address;
  int64_t bytes;
};

__device__ RowToFetch FindRow(const FetchArgs& args, int64_t u) {
  const int64_t t = FindOwnerAlone(args.num_tables, u,
                                   [&](int64_t table) { return args.sorted.num_unique[table]; });
  const int64_t row = KeyAt(args.sorted, args.sorted.segments[u]) - args.sorted.first_keys[t];
  const HostTable table = args.tables[t];
  return {table.address + row * table.row_bytes, u < args.capacity ? table.row_bytes : 0};
}

// A warp copies kRowsAtOnce rows, a word of each after the other; rows of 0 bytes are passed over.
template <typename Word>
__device__ void CopyRows(const RowToFetch (&rows)[kRowsAtOnce], char* to, int64_t stride,
                         int64_t most_bytes, int lane) {
  for (int64_t at = lane * sizeof(Word); at < most_bytes; at += kWarpSize * sizeof(Word)) {
    Word words[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      words[i] = LoadIf(at < rows[i].bytes, reinterpret_cast<const Word*>(rows[i].address + at));
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (at < rows[i].bytes) *reinterpret_cast<Word*>(to + i * stride + at) = words[i];
    }
  }
}

// A warp fetches kRowsAtOnce consecutive unique rows after the other, so that all warps together
// read host memory in ascending order.
__global__ void __launch_bounds__(kThreads) FetchRowsKernel(FetchArgs args) {
  const int64_t num_unique = args.sorted.num_unique[args.num_tables];
  const int64_t num_warps = int64_t{gridDim.x} * kWarpsPerBlock;
  const int lane = threadIdx.x % kWarpSize;
  int64_t first = (int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize) * kRowsAtOnce;
  for (; first < num_unique; first += num_warps * kRowsAtOnce) {
    RowToFetch row = {0, 0};
    if (lane < kRowsAtOnce && first + lane < num_unique) {
      row = FindRow(args, first + lane);
      char* to = args.fetched + (first + lane) * args.stride;
      args.unique_addresses[first + lane] =
          row.bytes == 0 ? row.address : reinterpret_cast<int64_t>(to);
    }
    RowToFetch rows[kRowsAtOnce];
    int64_t most_bytes = 0, alignment = 0;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      rows[i] = {__shfl_sync(kFullWarp, row.address, i), __shfl_sync(kFullWarp, row.bytes, i)};
      most_bytes = max(most_bytes, rows[i].bytes);
      alignment |= rows[i].address | rows[i].bytes;
    }
    char* to = args.fetched + first * args.stride;
    if (alignment % sizeof(uint4) == 0) {
      CopyRows<uint4>(rows, to, args.stride, most_bytes, lane);
    } else if (alignment % sizeof(unsigned int) == 0) {
      CopyRows<unsigned int>(rows, to, args.stride, most_bytes, lane);
    } else {
      CopyRows<unsigned short>(rows, to, args.stride, most_bytes, lane);
    }
  }
}

// The group whose ids are sorted. Without weights a combiner changes no row, and the factors of a
// mean are not needed.
struct SortedGroup {
  explicit SortedGroup(const Group& whole)
      : features(whole.features, whole.features + whole.num_features), group(whole) {
    group.batch.reads = nullptr;  // the ids are those that are read
    if (whole.batch.weights == nullptr) {
      for (Feature& feature : features) feature.combiner = Combiner::kSum;
    }
    for (int64_t t = 0; t < whole.num_tables; ++t) {
      const Table& table = whole.tables[t];
      first_rows.push_back(table.first_host_row < 0 ? table.num_rows : table.first_host_row);
    }
  }
  Group get() const {
    Group sorted = group;
    sorted.features = features.data();
    return sorted;
  }

  std::vector<Feature> features;
  std::vector<int64_t> first_rows;
  Group group;
};

// The parts of the scratch memory.
struct Scratch {
  char *sort, *arrays, *fetched;
  uint32_t *positions, *samples;
  int64_t *unique_addresses, *id_addresses;
  int64_t stride, capacity;  // of fetched rows
  int64_t bytes;
};

Scratch LayOut(const Group& group, const Group& sorted, void* memory) {
  Scratch s;
  int64_t at = 0;
  auto take = [&](int64_t bytes) {
    char* begin = static_cast<char*>(memory) + at;
    at += AlignScratch(bytes);
    return begin;
  };
  const int64_t num_ids = group.batch.num_ids;
  s.stride = 0;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    if (group.tables[t].first_host_row < 0) continue;
    s.stride = std::max(s.stride, (group.tables[t].dim * SizeOf(group.dtype) + 15) / 16 * 16);
  }
  s.capacity = std::min(num_ids, kMaxBytes / std::max<int64_t>(s.stride, 1));
  s.sort = take(SortRowsWorkspaceBytesCuda(sorted));
  s.arrays = take(group.num_tables * sizeof(HostTable));
  s.positions = reinterpret_cast<uint32_t*>(take(num_ids * 4));
  s.samples = reinterpret_cast<uint32_t*>(take(num_ids * 4));
  s.unique_addresses = reinterpret_cast<int64_t*>(take(num_ids * 8));
  s.id_addresses = reinterpret_cast<int64_t*>(take(num_ids * 8));
  s.fetched = take(s.capacity * s.stride);
  s.bytes = at;
  return s;
}

}  // namespace

bool FetchesHostRows(const Group& group) {
  if (group.batch.num_ids < kMinIds || group.batch.num_ids > kMaxBatchIds) return false;
  bool has_host_rows = false;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    if (Alignment(group.tables[t].rows) != 0) return false;  // as rows by address must be
    has_host_rows |= group.tables[t].first_host_row >= 0;
  }
  return has_host_rows;
}

int64_t FetchHostRowsScratchBytes(const Group& group) {
  return LayOut(group, SortedGroup(group).get(), nullptr).bytes;
}

cudaError_t FetchHostRowsCuda(const Group& group, void* scratch, Fault* fault,
                              std::vector<Table>* tables, Group* by_address, cudaStream_t stream) {
  const SortedGroup to_sort(group);
  const Scratch s = LayOut(group, to_sort.get(), scratch);
  SortOptions options;
  options.first_rows = to_sort.first_rows.data();
  options.positions = s.positions;
  options.samples = s.samples;
  options.id_addresses = s.id_addresses;
  options.fault = fault;
  FetchArgs args;
  cudaError_t error = SortRowsCuda(to_sort.get(), s.sort, &args.sorted, stream, options);
  if (error != cudaSuccess) return error;
  std::vector<HostTable> host_tables;
  tables->assign(group.tables, group.tables + group.num_tables);
  for (Table& table : *tables) {
    host_tables.push_back({reinterpret_cast<int64_t>(table.rows), table.dim * SizeOf(group.dtype)});
    table = {/*rows=*/nullptr, /*num_rows=*/kZeroRowAddress, table.dim, table.max_norm};
  }
  DeviceArrays arrays(s.arrays);
  args.tables = arrays.Add(host_tables);
  args.num_tables = group.num_tables;
  args.fetched = s.fetched;
  args.stride = s.stride;
  args.capacity = s.capacity;
  args.unique_addresses = s.unique_addresses;
  if ((error = arrays.Send(stream)) != cudaSuccess) return error;
  const int64_t num_blocks = kBlocksPerMultiprocessor * NumMultiprocessors();
  FetchRowsKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(args);
  if ((error = cudaGetLastError()) != cudaSuccess) return error;
  *by_address = group;
  by_address->tables = tables->data();
  by_address->batch.ids = s.id_addresses;
  by_address->batch.reads = nullptr;
  by_address->invalid_ids = {/*prune_negative=*/true, /*read_zeros=*/true};
  return ScatterAddressesCuda(args.sorted, group.num_tables, group.batch.num_ids, s.positions,
                              s.unique_addresses, s.id_addresses, stream);
}

}  // namespace group_embedding
