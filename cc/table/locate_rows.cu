// Locating on the device. Each step is one launch for all tables of a call:
//   0. PutAside      only while a snapshot is being read
//   1. LocateKeys    finds rows, and counts their keys. Of the occurrences of a key without a row one
//                    claims a slot of the index, the others follow it
//   2. CountClaims, AddToBloom   only for tables with a filter: how often those keys were seen
//   3. ChooseRows    which of them get a row; a scan numbers them by their first places
//   4. GiveRows      writes the new rows, and makes them known to the index
//   5. TellFollowers has the other occurrences read the same
//   6. Finish        brings the tables' counters up to date
#include <algorithm>
#include <cub/device/device_scan.cuh>
#include <vector>

#include "core/trace.h"
#include "table/device_bloom.cuh"
#include "table/device_hash.h"
#include "table/find_slots.cuh"
#include "table/row_aside.cuh"
#include "table/start_rows.cuh"

namespace group_embedding {
namespace {

// One more occurrence of a key that has a row.
__device__ void CountKey(const LocateArgs& args, const DeviceTableRef& table, int64_t row) {
  RowInfo* info = &table.infos[row];
  atomicAdd(reinterpret_cast<unsigned long long*>(&info->count), 1ULL);
  __stcg(reinterpret_cast<longlong2*>(&info->version), longlong2{args.step, table.clock});
}

// A thread finds one key, together with its warp.
template <bool kTrain>
__global__ void __launch_bounds__(kLocateThreads) LocateKeysKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  const int64_t key = place.is_key ? place.task.keys[place.i] : 0;
  const FoundKey found = SlotSearch<kTrain>(args, place, key).Run();
  if (!place.is_key) return;
  if (!kTrain) {
    place.task.rows[place.i] = found.row >= 0 ? found.row : place.table.DefaultRow(key);
    return;
  }
  const int64_t position = place.position();
  args.claims[position] = found.claim;
  args.gets_row[position] = 0;
  if (args.counts != nullptr) {
    args.counts[position] = 0;
    args.candidates[position] = found.met_candidate;
  }
  if (found.row < 0) return;
  place.task.rows[place.i] = found.row;
  CountKey(args, place.table, found.row);
}

// A thread finds one key, together with its warp; what the rows hold that are about to be counted is
// put aside for the snapshot that is being read.
__global__ void __launch_bounds__(kLocateThreads) PutAsideKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (place.table.aside == nullptr) return;
  const int64_t key = place.is_key ? place.task.keys[place.i] : 0;
  PutAside(*place.table.aside, SlotSearch<false>(args, place, key).Run().row);
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) CountClaimsKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key) return;
  const int64_t position = place.position();
  const uint64_t claim = args.claims[position];
  if (KindOfClaim(claim) == ClaimKind::kNone) return;
  const bool is_follower = KindOfClaim(claim) == ClaimKind::kFollower;
  int64_t count = 1;
  if (!is_follower && args.candidates[position] != 0) {
    count += place.table.candidates[args.candidates[position] - 1].count;
  }
  auto* counts = reinterpret_cast<unsigned long long*>(args.counts);
  atomicAdd(&counts[is_follower ? NumberOfClaim(claim) : position],
            static_cast<unsigned long long>(count));
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) AddToBloomKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key || place.table.bloom == nullptr) return;
  if (KindOfClaim(args.claims[place.position()]) != ClaimKind::kSlot) return;
  DeviceBloom(place.table.bloom, place.table.admission)
      .Add(IndexRef::HashOf(place.task.keys[place.i]), args.counts[place.position()]);
}

__device__ bool IsAdmitted(const LocateArgs& args, const LocatePlace& place) {
  const Admission& admission = place.table.admission;
  if (args.admits_all || admission.kind == Admission::Kind::kAll) return true;
  int64_t* count = &args.counts[place.position()];
  if (admission.kind == Admission::Kind::kBloom) {
    *count = DeviceBloom(place.table.bloom, admission)
                 .Count(IndexRef::HashOf(place.task.keys[place.i]));
  }
  return *count >= admission.min_count;
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) ChooseRowsKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key) return;
  if (KindOfClaim(args.claims[place.position()]) != ClaimKind::kSlot) return;
  if (IsAdmitted(args, place)) args.gets_row[place.FirstPosition(args)] = 1;
}

// The row of a claimed key, or kNoRow.
__device__ int64_t NewRow(const LocateArgs& args, const LocatePlace& place) {
  const int64_t first = place.FirstPosition(args);
  if (!args.gets_row[first]) return kNoRow;
  const TableState& state = *place.table.state;
  const int64_t rank = args.ranks[first] - args.ranks[args.table_positions[place.task.table]];
  const int64_t row = rank < state.num_free ? place.table.free_rows[state.num_free - 1 - rank]
                                            : state.next_row + rank - state.num_free;
  return row < place.table.usable_rows ? row : kNoRow;
}

// A key that is not admitted is a candidate from now on, or still; its number.
__device__ int64_t KeepCandidate(const LocateArgs& args, const LocatePlace& place, int64_t key) {
  const int64_t position = place.position();
  const DeviceTableRef& table = place.table;
  int64_t candidate = args.candidates[position] - 1;
  if (candidate < 0) {
    const TableState& state = *table.state;
    const int64_t taken = atomicAdd(&table.state->candidates_taken, 1ULL);
    candidate = taken < state.num_free_candidates
                    ? table.free_candidates[state.num_free_candidates - 1 - taken]
                    : state.next_candidate + taken - state.num_free_candidates;
  }
  table.candidates[candidate] = {key, args.counts[position]};
  return candidate;
}

// What a claimed slot says in the end: what it was before, if that was nothing, or more. Returns
// whether it is a slot more that is not empty.
__device__ bool PublishSlot(const LocateArgs& args, const LocatePlace& place, int64_t key,
                            int64_t row) {
  const IndexRef& index = place.table.index;
  uint64_t* slot = index.slots + NumberOfClaim(args.claims[place.position()]);
  const uint32_t tag = IndexRef::TagOf(IndexRef::HashOf(key));
  const bool was_candidate = args.candidates != nullptr && args.candidates[place.position()] != 0;
  if (row != kNoRow) {
    __stcg(slot, SlotWord::Make(tag, SlotKind::kRow, row));
  } else if (place.table.admission.kind == Admission::Kind::kCounter) {
    const int64_t candidate = KeepCandidate(args, place, key);
    __threadfence();
    __stcg(slot, SlotWord::Make(tag, SlotKind::kCandidate, candidate));
  } else {
    index.Free(slot);
    return __ldcg(slot) != kEmptySlot;
  }
  return !was_candidate;
}

// A thread has one key; a warp writes the rows of its 32 keys together.
__global__ void __launch_bounds__(kLocateThreads) GiveRowsKernel(LocateArgs args) {
  __shared__ int64_t new_rows[kLocateThreads], new_keys[kLocateThreads];
  const LocatePlace place = LocatePlace::Of(args);
  const DeviceTableRef& table = place.table;
  const bool has_claim =
      place.is_key && KindOfClaim(args.claims[place.position()]) == ClaimKind::kSlot;
  if (!__any_sync(kFullWarp, has_claim)) return;
  const int lane = threadIdx.x % kWarpSize, warp_begin = threadIdx.x - lane;
  const int64_t key = has_claim ? place.task.keys[place.i] : 0;
  const int64_t row = has_claim ? NewRow(args, place) : kNoRow;
  const unsigned votes = __ballot_sync(kFullWarp, row != kNoRow);
  if (row != kNoRow) {
    const bool is_counted = table.admission.kind != Admission::Kind::kAll;
    table.infos[row] = {key, is_counted ? args.counts[place.position()] : 1, args.step,
                        table.clock};
    if (table.aside != nullptr) MarkNew(*table.aside, row);
    const int at = warp_begin + __popc(votes & ((1u << lane) - 1));
    new_rows[at] = row;
    new_keys[at] = key;
  }
  __syncwarp();
  StartRows(table, new_rows + warp_begin, new_keys + warp_begin, __popc(votes), lane);
  // Whoever finds the row in the index finds it written.
  __threadfence();
  __syncwarp();
  bool uses_slot = false;
  if (has_claim) {
    uses_slot = PublishSlot(args, place, key, row);
    place.task.rows[place.i] = row != kNoRow ? row : table.DefaultRow(key);
  }
  const int num_slots = __popc(__ballot_sync(kFullWarp, uses_slot));
  if (lane == 0 && num_slots > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&table.state->used_slots),
              static_cast<unsigned long long>(num_slots));
  }
}

// A candidate's number may be given to another key.
__device__ void FreeCandidate(const DeviceTableRef& table, int64_t candidate) {
  TableState& state = *table.state;
  const int64_t taken =
      min(static_cast<int64_t>(state.candidates_taken), state.num_free_candidates);
  table.candidates[candidate].count = 0;
  const int64_t freed = atomicAdd(&state.candidates_freed, 1ULL);
  table.free_candidates[state.num_free_candidates - taken + freed] = candidate;
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) TellFollowersKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key) return;
  const DeviceTableRef& table = place.table;
  const uint64_t claim = args.claims[place.position()];
  if (KindOfClaim(claim) == ClaimKind::kFollower) {
    const int64_t followed = NumberOfClaim(claim);
    const LocateTask& task = TaskAt(args, followed);
    const int64_t row = task.rows[followed - task.first_position];
    place.task.rows[place.i] = row;
    if (row >= table.first_row && table.admission.kind == Admission::Kind::kAll) {
      CountKey(args, table, row);
    }
  } else if (KindOfClaim(claim) == ClaimKind::kSlot && args.candidates != nullptr) {
    const int64_t candidate = args.candidates[place.position()];
    if (candidate != 0 && place.task.rows[place.i] >= table.first_row) {
      FreeCandidate(table, candidate - 1);
    }
  }
}

// A thread has one table.
__global__ void FinishKernel(LocateArgs args) {
  const int64_t t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= args.num_tables) return;
  const DeviceTableRef& table = args.tables[t];
  TableState state = *table.state;
  const int64_t wanted =
      args.ranks[args.table_positions[t + 1]] - args.ranks[args.table_positions[t]];
  const int64_t given = min(wanted, state.num_free + table.usable_rows - state.next_row);
  const int64_t reused = min(given, state.num_free);
  state.is_full = given < wanted;
  state.num_free -= reused;
  state.next_row += given - reused;
  state.num_keys += given;
  const int64_t taken = state.candidates_taken;
  const int64_t taken_free = min(taken, state.num_free_candidates);
  state.num_free_candidates += static_cast<int64_t>(state.candidates_freed) - taken_free;
  state.next_candidate += taken - taken_free;
  state.candidates_taken = state.candidates_freed = 0;
  *table.state = state;
  table.report->state = state;
  __threadfence_system();
  *reinterpret_cast<volatile int64_t*>(&table.report->enqueued) = table.enqueued;
}

// A call: requests in the order of positions, and their tables.
struct LocatePlan {
  std::vector<LocateTask> tasks;
  std::vector<DeviceHash*> tables;
  std::vector<int64_t> first_positions = {0}, table_positions = {0};
  BlockPlan blocks;
  bool has_filter = false, has_bloom = false;

  int64_t num_positions() const { return first_positions.back(); }
  int64_t KeysOf(size_t t) const { return table_positions[t + 1] - table_positions[t]; }
  bool HasSnapshot() const {
    return std::any_of(tables.begin(), tables.end(),
                       [](const DeviceHash* table) { return table->snapshot() != nullptr; });
  }
};

LocatePlan PlanLocate(const DeviceKeysToLocate* requests, int64_t num_requests) {
  LocatePlan plan;
  std::vector<std::vector<int64_t>> requests_of;
  std::map<DeviceTable*, size_t> index_of;
  for (int64_t r = 0; r < num_requests; ++r) {
    const auto [at, is_new] = index_of.try_emplace(requests[r].table, plan.tables.size());
    if (is_new) {
      plan.tables.push_back(static_cast<DeviceHash*>(requests[r].table));
      requests_of.emplace_back();
      const Admission::Kind kind = requests[r].table->options().admission.kind;
      plan.has_filter |= kind != Admission::Kind::kAll;
      plan.has_bloom |= kind == Admission::Kind::kBloom;
    }
    requests_of[at->second].push_back(r);
  }
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    for (const int64_t r : requests_of[t]) {
      const DeviceKeysToLocate& from = requests[r];
      plan.tasks.push_back({from.keys, from.rows, from.num_keys, plan.num_positions(),
                            static_cast<int64_t>(t)});
      plan.first_positions.push_back(plan.num_positions() + from.num_keys);
      plan.blocks.Append((from.num_keys + kLocateThreads - 1) / kLocateThreads);
    }
    plan.table_positions.push_back(plan.num_positions());
  }
  return plan;
}

size_t ScanBytes(int64_t count) {
  size_t bytes = 0;
  cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<int32_t*>(nullptr),
                                static_cast<int32_t*>(nullptr), static_cast<int>(count));
  return bytes;
}

// The scratch memory of a call: descriptors, then arrays of one element per position.
class LocateScratch {
 public:
  explicit LocateScratch(void* scratch) : arrays_(scratch), begin_(static_cast<char*>(scratch)) {}

  LocateArgs Lay(const LocatePlan& plan, const std::vector<DeviceTableRef>& tables, Access access) {
    LocateArgs args{};
    args.tasks = arrays_.Add(plan.tasks);
    args.first_blocks = arrays_.Add(plan.blocks.first_blocks());
    args.first_positions = arrays_.Add(plan.first_positions);
    args.num_tasks = static_cast<int64_t>(plan.tasks.size());
    args.tables = arrays_.Add(tables);
    args.table_positions = arrays_.Add(plan.table_positions);
    args.num_tables = static_cast<int64_t>(tables.size());
    size_ = arrays_.size();
    if (access == Access::kRead) return args;
    const int64_t count = plan.num_positions();
    args.claims = Take<uint64_t>(count);
    args.firsts = Take<uint32_t>(count);
    args.gets_row = Take<int32_t>(count + 1);
    args.ranks = Take<int32_t>(count + 1);
    if (plan.has_filter) {
      args.counts = Take<int64_t>(count);
      args.candidates = Take<int64_t>(count);
    }
    scan_bytes_ = ScanBytes(count + 1);
    scan_ = Take<char>(static_cast<int64_t>(scan_bytes_));
    return args;
  }

  cudaError_t Send(cudaStream_t stream) const { return arrays_.Send(stream); }
  cudaError_t Scan(const LocateArgs& args, int64_t num_positions, cudaStream_t stream) {
    return cub::DeviceScan::ExclusiveSum(scan_, scan_bytes_, args.gets_row, args.ranks,
                                         static_cast<int>(num_positions + 1), stream);
  }
  int64_t size() const { return size_; }

 private:
  template <typename T>
  T* Take(int64_t count) {
    T* array = reinterpret_cast<T*>(begin_ + size_);
    size_ += AlignScratch(count * static_cast<int64_t>(sizeof(T)));
    return array;
  }

  DeviceArrays arrays_;
  char* begin_;
  int64_t size_ = 0;
  void* scan_ = nullptr;
  size_t scan_bytes_ = 0;
};

cudaError_t LaunchTraining(const LocatePlan& plan, const LocateArgs& args, LocateScratch* scratch,
                           cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(plan.blocks.num_blocks());
  if (plan.HasSnapshot()) PutAsideKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  const int64_t count = plan.num_positions();
  cudaError_t error = cudaMemsetAsync(args.firsts, 0xFF, count * sizeof(uint32_t), stream);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(args.gets_row + count, 0, sizeof(int32_t), stream);
  }
  if (error != cudaSuccess) return error;
  LocateKeysKernel<true><<<blocks, kLocateThreads, 0, stream>>>(args);
  if (plan.has_filter) CountClaimsKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  if (plan.has_bloom && !args.admits_all) {
    AddToBloomKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  }
  ChooseRowsKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  error = scratch->Scan(args, count, stream);
  if (error != cudaSuccess) return error;
  GiveRowsKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  TellFollowersKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  constexpr int kTableThreads = 128;
  const int64_t table_blocks = (args.num_tables + kTableThreads - 1) / kTableThreads;
  FinishKernel<<<static_cast<unsigned>(table_blocks), kTableThreads, 0, stream>>>(args);
  return cudaSuccess;
}

std::string InWords(cudaError_t error) {
  return error == cudaSuccess ? "" : std::string("CUDA: ") + cudaGetErrorString(error);
}

// The caller holds the tables' mutexes.
std::string Locate(const LocatePlan& plan, Access access, bool admits_all, int64_t step,
                   void* scratch_memory, cudaStream_t stream) {
  const Stage stage("locate");
  if (plan.num_positions() == 0) return "";
  if (plan.num_positions() >= INT32_MAX) return "expected fewer than 2^31 keys in a call";
  std::vector<DeviceTableRef> tables;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    std::string error = plan.tables[t]->Prepare(plan.KeysOf(t), access, stream);
    if (!error.empty()) return error;
    tables.push_back(plan.tables[t]->Ref());
  }
  LocateScratch scratch(scratch_memory);
  LocateArgs args = scratch.Lay(plan, tables, access);
  args.step = step;
  args.admits_all = admits_all;
  cudaError_t error = scratch.Send(stream);
  if (error != cudaSuccess) return InWords(error);
  if (access == Access::kRead) {
    LocateKeysKernel<false><<<static_cast<unsigned>(plan.blocks.num_blocks()), kLocateThreads, 0,
                              stream>>>(args);
  } else {
    error = LaunchTraining(plan, args, &scratch, stream);
  }
  if (error == cudaSuccess) error = cudaGetLastError();
  if (error != cudaSuccess || access == Access::kRead) return InWords(error);
  for (DeviceHash* table : plan.tables) {
    std::string full = table->CheckFull(stream);
    if (!full.empty()) return full;
  }
  return "";
}

}  // namespace

int64_t LocateRowsScratchBytes(const DeviceKeysToLocate* requests, int64_t num_requests,
                               Access access) {
  const LocatePlan plan = PlanLocate(requests, num_requests);
  LocateScratch scratch(nullptr);
  scratch.Lay(plan, std::vector<DeviceTableRef>(plan.tables.size()), access);
  return scratch.size();
}

std::string LocateRowsCuda(const DeviceKeysToLocate* requests, int64_t num_requests, Access access,
                           int64_t step, void* scratch, cudaStream_t stream) {
  const LocatePlan plan = PlanLocate(requests, num_requests);
  std::vector<DeviceHash*> in_order = plan.tables;
  std::sort(in_order.begin(), in_order.end());
  std::vector<std::unique_lock<std::mutex>> locks;
  for (DeviceHash* table : in_order) locks.emplace_back(table->mutex());
  return Locate(plan, access, /*admits_all=*/false, step, scratch, stream);
}

std::string InsertRowsCuda(DeviceHash* table, const int64_t* keys, int64_t num_keys, int64_t* rows,
                           void* scratch, cudaStream_t stream) {
  const DeviceKeysToLocate request{table, keys, num_keys, rows};
  return Locate(PlanLocate(&request, 1), Access::kTrain, /*admits_all=*/true, -1, scratch, stream);
}

}  // namespace group_embedding
