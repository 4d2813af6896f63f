// RowCopies: copies of rows as they were when a snapshot was taken, on the device. A row that is
// about to change is copied once.
#pragma once

#include "core/descriptors.cuh"
#include "table/device/device_table_ref.cuh"

namespace group_embedding {

// One of the arrays that hold a row's data: infos, values, or a slot.
struct RowArray {
  char* live;    // [rows of the table], `bytes` each
  char* copies;  // [copied rows]
  char* out;     // [rows of a read]
  int32_t bytes;
};

struct RowCopiesRef {
  static constexpr uint32_t kUntouched = 0, kDone = 1, kFirstCopy = 2;

  RowArray arrays[kMaxSlotArrays + 2];  // the first is RowInfo
  int32_t num_arrays;
  int64_t first_row, num_rows;  // at that instant
  int64_t changed_since;        // rows trained only in earlier batches are not read
  uint32_t* states;  // [num_rows] kUntouched; kDone: read, or not wanted; kFirstCopy + k:
                     // its copy is the k-th
  unsigned long long* num_copies;
  unsigned long long* num_out;

  __device__ const RowInfo& Info(int64_t row) const {
    return reinterpret_cast<const RowInfo*>(arrays[0].live)[row];
  }
  __device__ bool IsWanted(int64_t row) const {
    return Info(row).count >= 0 && Info(row).clock >= changed_since;
  }
};

// Called when `row` is given to a key. If it had no key at the snapshot's instant, it is not read.
__device__ inline void MarkNew(const RowCopiesRef& copies, int64_t row) {
  if (row < copies.num_rows) {
    atomicCAS(&copies.states[row], RowCopiesRef::kUntouched, RowCopiesRef::kDone);
  }
}

// A warp calls it together.
__device__ inline void CopyBytes(const char* from, char* to, int32_t bytes, int lane) {
  const bool in_words =
      ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | bytes) & 3) == 0;
  if (in_words) {
    for (int32_t b = 4 * lane; b < bytes; b += 4 * kWarpSize) {
      *reinterpret_cast<uint32_t*>(to + b) = __ldcg(reinterpret_cast<const uint32_t*>(from + b));
    }
  } else {
    for (int32_t b = 2 * lane; b < bytes; b += 2 * kWarpSize) {
      *reinterpret_cast<uint16_t*>(to + b) = __ldcg(reinterpret_cast<const uint16_t*>(from + b));
    }
  }
}

// One row per lane, or kNoRow; all lanes of a warp call it together.
__device__ inline void CopyForSnapshot(const RowCopiesRef& copies, int64_t row) {
  const int lane = threadIdx.x % kWarpSize;
  bool is_mine = row >= copies.first_row && row < copies.num_rows &&
                 atomicCAS(&copies.states[row], RowCopiesRef::kUntouched, RowCopiesRef::kDone) ==
                     RowCopiesRef::kUntouched;
  is_mine = is_mine && copies.IsWanted(row);
  int64_t place = 0;
  if (is_mine) {
    place = static_cast<int64_t>(atomicAdd(copies.num_copies, 1ULL));
    copies.states[row] = RowCopiesRef::kFirstCopy + static_cast<uint32_t>(place);
  }
  for (unsigned votes = __ballot_sync(kFullWarp, is_mine); votes != 0; votes &= votes - 1) {
    const int from = __ffs(votes) - 1;
    const int64_t its_row = __shfl_sync(kFullWarp, row, from);
    const int64_t its_place = __shfl_sync(kFullWarp, place, from);
    for (int p = 0; p < copies.num_arrays; ++p) {
      const RowArray& array = copies.arrays[p];
      CopyBytes(array.live + its_row * array.bytes, array.copies + its_place * array.bytes,
                array.bytes, lane);
    }
  }
}

}  // namespace group_embedding
