// DeviceTableRef: a DeviceHash as kernels see it, trivially copyable.
#pragma once

#include <cstdint>

#include "core/rows.cuh"
#include "table/device/device_index.cuh"
#include "table/device/row_moves.cuh"
#include "table/embedding_table.h"

namespace group_embedding {

inline constexpr int kMaxSlotArrays = 11;  // of an update rule 8, of the table 3

// A key that is counted and has no row.
struct Candidate {
  int64_t key;
  int64_t count;  // 0: it is no key's
};

// The count of a row that is lent to a key without a place in the table's budget. It is no key's.
inline constexpr int64_t kLentCount = INT64_MIN;

// What a table counts, in device memory; written by the calls that train, one after the other.
struct TableState {
  int64_t next_row;  // rows from that on were never used
  int64_t num_free;  // rows that may be given away again
  int64_t num_keys;
  int64_t used_slots;  // of the index: those that are not empty
  int64_t next_candidate, num_free_candidates;
  // The running call:
  unsigned long long candidates_taken, candidates_freed;
  unsigned long long lent_asked_for;  // rows, by keys without a place
  int32_t is_full;                    // some keys of the call got no row

  // How many rows will have been in use when so many new keys more have got theirs.
  int64_t RowsWith(int64_t num_keys) const {
    return next_row + (num_keys > num_free ? num_keys - num_free : 0);
  }
};

// A copy of TableState in host memory, with the number of keys that were enqueued for training
// before it.
struct TableReport {
  int64_t enqueued;
  TableState state;
};

struct SlotArray {
  void* values;
  int32_t width;
  DataType dtype;
  float initial;
};

struct RowCopiesRef;
struct FoundCounts;
struct PartSample;

struct DeviceTableRef {
  IndexRef index;
  RowInfo* infos;             // [usable_rows]
  char* rows;                 // [usable_rows, dim]
  int64_t* free_rows;         // [state.num_free], the last one goes first
  Candidate* candidates;      // [state.next_candidate]
  int64_t* free_candidates;   // [state.num_free_candidates]
  unsigned long long* bloom;  // counters, packed; null without a Bloom filter
  TableState* state;
  TableReport* report;         // host memory
  const RowCopiesRef* copies;  // of the snapshot that is being read, or null
  MovesRef moves;
  int64_t first_row, usable_rows;
  int64_t clock;  // of the call
  int64_t enqueued;
  InitialValues initial;
  Admission admission;
  DataType dtype;
  int32_t dim;
  RowShape shape;
  int32_t num_slot_arrays;
  SlotArray slot_arrays[kMaxSlotArrays];
  // Those that the table has for its budget and for evictions by time; null: it needs none.
  const float* scores;  // [usable_rows], kScoreSlot
  uint32_t* born;       // [usable_rows], kBornSlot
  uint32_t* minutes;    // [usable_rows], kTimeSlot
  uint32_t minute;      // of the call
  int64_t decay_steps;  // of Budget
  bool lends;           // rows to keys without a place: LendsRows()
  // Where the call counts (use_state.cuh); null: it does not.
  FoundCounts* found;
  unsigned long long* num_admitted;
  PartSample* sample;  // of the keys of this part
  int32_t sampled_part;

  // The row that a key without one reads.
  __device__ int64_t DefaultRow(int64_t key) const {
    const bool starts_as_it = initial.matrix_rows > 0 && admission.kind == Admission::Kind::kAll;
    return starts_as_it ? MatrixRow(key, initial.matrix_rows) : initial.matrix_rows;
  }
  __device__ bool IsLent(int64_t row) const {
    return lends && __ldcg(&infos[row].count) == kLentCount;
  }
  __device__ int64_t KeyOfRow(int64_t row) const { return __ldcg(&infos[row].key); }
  __device__ char* Row(int64_t row) const { return rows + row * dim * SizeOf(dtype); }
  __device__ void MarkTime(int64_t row) const {
    if (minutes != nullptr) __stcg(&minutes[row], minute);
  }
};

}  // namespace group_embedding
