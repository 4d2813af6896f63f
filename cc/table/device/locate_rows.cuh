// The arguments that the kernels of locate_rows.cu share: the keys of a call, and each thread's
// position in it.
#pragma once

#include "core/descriptors.cuh"
#include "table/device/device_table_ref.cuh"

namespace group_embedding {

inline constexpr int kLocateThreads = 256;

// One request. A position is a key's index among the keys of all requests, table after table.
struct LocateTask {
  const int64_t* keys;
  int64_t* rows;
  const int64_t* times;  // occurrences of each key; null: one each
  int64_t* reads;        // as of KeysToLocate, or null
  int64_t num_keys;
  int64_t first_position;
  int64_t table;
};

// The state of a key without a row: the two low bits of a claim. The upper bits hold a number.
enum class ClaimKind : uint64_t {
  kNone = 0,      // it has a row
  kSlot = 1,      // number: the slot of the index, or of the call, that this occurrence has claimed
                  // for all occurrences of the key
  kFollower = 2,  // number: the position of the occurrence that has claimed the slot
};

struct LocateArgs {
  const LocateTask* tasks;         // [num_tasks]
  const int64_t* first_blocks;     // [num_tasks + 1]
  const int64_t* first_positions;  // [num_tasks + 1]
  int64_t num_tasks;
  const DeviceTableRef* tables;    // [num_tables]
  const int64_t* table_positions;  // [num_tables + 1]
  int64_t num_tables;
  int64_t step;
  bool admits_all;  // whatever the tables' filters say

  // To train: per position.
  uint64_t* claims;
  uint32_t* firsts;  // where a slot was claimed: the first of the followers, or all ones
  int32_t*
      gets_row;  // [positions + 1] at a key's first position: whether it gets a row; the last is 0
  int32_t* ranks;  // [positions + 1] how many before it get a row
  // Where a table has a filter, else null; where a slot was claimed:
  int64_t* counts;      // how often the key was seen
  int64_t* candidates;  // 0, or the number of the candidate that the key was, + 1
  // Where DeviceHash::claims_of_call: new keys claim slots of the call, so that those that get
  // neither row nor count take none of the index.
  uint64_t* claim_slots;         // of all such tables
  const IndexArea* claim_areas;  // [num_tables] of these; no buckets: its keys claim the index's
};

__device__ inline ClaimKind KindOfClaim(uint64_t claim) {
  return static_cast<ClaimKind>(claim & 3);
}
__device__ inline int64_t NumberOfClaim(uint64_t claim) { return static_cast<int64_t>(claim >> 2); }
__device__ inline uint64_t MakeClaim(ClaimKind kind, int64_t number) {
  return static_cast<uint64_t>(number) << 2 | static_cast<uint64_t>(kind);
}

// A thread's key.
struct LocatePlace {
  const LocateTask& task;
  const DeviceTableRef& table;
  int64_t i;  // in the request
  bool is_key;

  __device__ static LocatePlace Of(const LocateArgs& args) {
    const int64_t t = FindOwner(args.first_blocks, args.num_tasks, blockIdx.x);
    const LocateTask& task = args.tasks[t];
    const int64_t i = (blockIdx.x - args.first_blocks[t]) * kLocateThreads + threadIdx.x;
    return {task, args.tables[task.table], i, i < task.num_keys};
  }
  __device__ int64_t position() const { return task.first_position + i; }
  // The host has not checked `times`: bounded here, as on the host.
  __device__ int64_t times() const {
    return task.times == nullptr ? 1 : min(max(task.times[i], int64_t{1}), kMaxTimes);
  }
  // The first position of a claimed key.
  __device__ int64_t FirstPosition(const LocateArgs& args) const {
    return min(position(), static_cast<int64_t>(args.firsts[position()]));
  }
};

// The request that has a position.
__device__ inline const LocateTask& TaskAt(const LocateArgs& args, int64_t position) {
  return args.tasks[FindOwnerAlone(args.num_tasks, position,
                                   [&](int64_t i) { return args.first_positions[i]; })];
}

}  // namespace group_embedding
