// GrowingIndex: the memory of an index that grows in small steps. A larger area is allocated piece
// by piece; keys move into it some buckets at a time, in the order of their hashes; then the former
// area is freed piece by piece. Each call does work in proportion to its keys.
//
// Not thread-safe. Work that it enqueues must use the table alone.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>

#include "core/status.h"
#include "table/device/device_memory.h"
#include "table/device/device_table_ref.cuh"

namespace group_embedding {

class GrowingIndex {
 public:
  // What a call may do: so many bytes of new memory, so many slots whose keys move.
  struct Work {
    int64_t bytes, slots;

    static Work For(int64_t num_keys);
    static Work All();
  };

  explicit GrowingIndex(int64_t max_slots);
  ~GrowingIndex();
  GrowingIndex(const GrowingIndex&) = delete;
  GrowingIndex& operator=(const GrowingIndex&) = delete;

  // Not between MakeArea and Move, but for Move's own table.
  IndexRef ref() const;
  // The number of slots of the area into which keys are inserted.
  int64_t num_slots() const { return slots_[current_]; }
  // The number of slots of the smaller area while the index has two.
  int64_t least_slots() const { return is_moving_ ? std::min(slots_[0], slots_[1]) : num_slots(); }
  int64_t bytes() const { return (slots_[0] + slots_[1]) * kSlotBytes; }

  bool is_growing() const { return wanted_ > 0; }
  // Begins to grow to so many slots, or to as many as there are without those that are erased.
  void Begin(int64_t num_slots);
  // First until it returns true or `error` is set: makes the new area. Then moves keys into it,
  // with `table` as it is.
  bool MakeArea(const Work& work, cudaStream_t stream, Status* error);
  cudaError_t Move(DeviceTableRef table, const Work& work, cudaStream_t stream);
  // Empties all slots, and does not grow any more.
  cudaError_t Clear(cudaStream_t stream);
  // Gives back some memory that nothing uses any more.
  void ReleaseFormer();

 private:
  static constexpr int64_t kSlotBytes = sizeof(uint64_t);

  IndexArea AreaOf(int which) const;
  DeviceMemory& former() const { return *areas_[1 - current_]; }

  std::unique_ptr<DeviceMemory> areas_[2];
  int64_t slots_[2] = {0, 0};
  int current_ = 0;
  int64_t wanted_ = 0;           // slots to grow to; 0: it does not grow
  int64_t cleared_bytes_ = 0;    // of the area that is being made
  bool is_moving_ = false;       // from the former area to the current one
  int64_t moved_buckets_ = 0;    // of the former one
  cudaEvent_t moved_ = nullptr;  // the last of them
};

}  // namespace group_embedding
