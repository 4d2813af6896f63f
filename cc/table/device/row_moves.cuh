// MovesRef: the state of rows in two memories, as kernels see it: when each row was located, and
// which rows in host memory are to move to device memory (row_moves.h).
#pragma once

#include "table/disk/cache_strategy.h"
#include "table/embedding_table.h"

namespace group_embedding {

struct MovesState {
  unsigned long long num_wanted;  // rows to record; at most max_wanted are recorded
  int64_t hand;                   // where the search for victims continues, from the first row on
  int64_t bar;                    // the mean heat of the last victims
  unsigned long long num_victims, victims_heat;  // of the running moves
};

struct MovesRef {
  // [usable_rows] twice the clock of the call that located the row last, + 1 if it is noted. Null:
  // all rows are in one memory.
  unsigned long long* uses;
  int64_t* wanted;  // [max_wanted]
  MovesState* state;
  int32_t* is_due;  // host memory: set when a first row is recorded
  int64_t max_wanted;
  int64_t device_rows;  // the first so many rows are in device memory
  CacheStrategy cache_strategy;
  uint32_t* is_next;  // [num_next] a bit per row: see prefetch_rows.h
  int64_t num_next;   // rows that have one

  __device__ int64_t ClockOf(int64_t row) const {
    return static_cast<int64_t>(__ldcg(&uses[row]) >> 1);
  }
  __device__ int64_t Heat(int64_t count, int64_t clock) const {
    return cache_strategy == CacheStrategy::kLeastFrequent ? count : clock;
  }

  // Whether a key of the next batch has the row, which stays in device memory then.
  __device__ bool IsNext(int64_t row) const {
    return row < num_next && (__ldcg(&is_next[row / 32]) >> (row % 32) & 1);
  }
  __device__ void ExchangeNext(int64_t a, int64_t b) const {
    const bool of_a = IsNext(a), of_b = IsNext(b);
    if (of_a == of_b) return;
    for (const int64_t row : {a, b}) {
      if (row < num_next) atomicXor(&is_next[row / 32], 1u << (row % 32));
    }
  }

  // Call `clock` has located the row, whatever was before. No one else may use it meanwhile.
  __device__ void SetUse(int64_t row, int64_t clock) const {
    uses[row] = static_cast<unsigned long long>(clock) << 1 | (uses[row] & 1);
  }
  // Notes that call `clock` has located `row`, after any count of its key.
  __device__ void Use(const RowInfo* infos, int64_t row, int64_t clock) const {
    if (uses == nullptr) return;
    unsigned long long seen = __ldcg(&uses[row]);
    bool is_wanted = false;
    for (;;) {
      if (static_cast<int64_t>(seen >> 1) >= clock) return;
      is_wanted = row >= device_rows && !(seen & 1) && state->num_wanted < max_wanted &&
                  Heat(__ldcg(&infos[row].count), clock) > state->bar;
      const unsigned long long now = static_cast<unsigned long long>(clock) << 1 | (seen & 1);
      const unsigned long long before = atomicCAS(&uses[row], seen, now | is_wanted);
      if (before == seen) break;
      seen = before;
    }
    if (!is_wanted) return;
    const auto index = static_cast<int64_t>(atomicAdd(&state->num_wanted, 1ULL));
    if (index < max_wanted) {
      wanted[index] = row;
    } else {
      atomicAnd(&uses[row], ~1ULL);
    }
    if (index == 0) *static_cast<volatile int32_t*>(is_due) = 1;
  }
};

}  // namespace group_embedding
