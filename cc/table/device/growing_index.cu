#include <algorithm>

#include "core/device_buffer.h"
#include "table/device/growing_index.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
// The least memory that is allocated or freed at once, which takes some tenths of a millisecond.
constexpr int64_t kLeastBytes = int64_t{64} << 20, kBytesPerKey = 512;
constexpr int64_t kReleasedBytes = int64_t{256} << 20;
// With these rates the new area is allocated and filled by the time that the number of keys has
// grown by a seventh.
constexpr int64_t kLeastSlots = 1 << 20, kSlotsPerKey = 16;

// The keys to move: those whose home is one of the former area's buckets [begin, end).
struct Moved {
  IndexRef index;
  uint64_t begin, end;

  __device__ bool Has(uint64_t hash) const {
    const uint64_t home = __umul64hi(hash, index.former.num_buckets);
    return home >= begin && home < end;
  }
  // Whether the slot was erased.
  __device__ bool Move(const DeviceTableRef& table, uint64_t* slot) const {
    const uint64_t word = __ldcg(slot);
    if (SlotWord::Tag(word) == SlotWord::kNoTag) return word == kErasedSlot;
    const int64_t number = SlotWord::Number(word);
    const SlotKind kind = SlotWord::Kind(word);
    const int64_t key =
        kind == SlotKind::kRow ? table.KeyOfRow(number) : __ldcg(&table.candidates[number].key);
    const uint64_t hash = IndexRef::HashOf(key);
    if (!Has(hash)) return false;
    index.PutInto(index.area, hash, kind, number);
    __stcg(slot, kMovedSlot);
    return false;
  }
};

// A thread has one slot of the buckets. Keys that found their bucket full are in the following
// buckets: the last block handles these, one slot per thread, up to the first bucket with an empty
// slot.
__global__ void MoveKeysKernel(DeviceTableRef table, Moved moved) {
  const IndexRef& index = moved.index;
  const uint64_t num_buckets = index.former.num_buckets;
  bool was_erased = false;
  if (blockIdx.x + 1 < gridDim.x) {
    const uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
    const uint64_t bucket = moved.begin + i / kBucketSlots;
    if (bucket < moved.end) {
      was_erased = moved.Move(table, index.Slot(index.former.first + bucket, i % kBucketSlots));
    }
  } else if (threadIdx.x < kBucketSlots) {
    const unsigned team = (1u << kBucketSlots) - 1;
    const uint64_t num_others = num_buckets - (moved.end - moved.begin);
    for (uint64_t i = 0; i < num_others; ++i) {
      const uint64_t bucket = index.former.first + (moved.end + i) % num_buckets;
      uint64_t* slot = index.Slot(bucket, threadIdx.x);
      const bool is_empty = __ldcg(slot) == kEmptySlot;
      moved.Move(table, slot);
      if (__any_sync(team, is_empty)) break;
    }
  }
  const int num_erased = __popc(__ballot_sync(kFullWarp, was_erased));
  if (num_erased > 0 && threadIdx.x % kWarpSize == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&table.state->used_slots),
              ~static_cast<unsigned long long>(num_erased) + 1);
  }
}

}  // namespace

GrowingIndex::Work GrowingIndex::Work::For(int64_t num_keys) {
  return {std::max(kLeastBytes, kBytesPerKey * num_keys),
          std::max(kLeastSlots, kSlotsPerKey * num_keys)};
}

GrowingIndex::Work GrowingIndex::Work::All() { return {INT64_MAX / 2, INT64_MAX / 2}; }

GrowingIndex::GrowingIndex(int64_t max_slots) {
  for (auto& area : areas_) area = ReserveDeviceMemory(max_slots * kSlotBytes);
  cudaEventCreateWithFlags(&moved_, cudaEventDisableTiming);
}

GrowingIndex::~GrowingIndex() { cudaEventDestroy(moved_); }

// Both areas' buckets are numbered from the lower one's first.
IndexArea GrowingIndex::AreaOf(int which) const {
  const char* lower = std::min(areas_[0]->data(), areas_[1]->data());
  const auto first = static_cast<uint64_t>(areas_[which]->data() - lower) / kBucketBytes;
  return {first, static_cast<uint64_t>(slots_[which] / kBucketSlots)};
}

IndexRef GrowingIndex::ref() const {
  IndexRef ref{};
  ref.slots = reinterpret_cast<uint64_t*>(std::min(areas_[0]->data(), areas_[1]->data()));
  ref.area = AreaOf(current_);
  ref.former = AreaOf(is_moving_ ? 1 - current_ : current_);
  ref.last_moved = ~uint64_t{0};
  if (is_moving_ && moved_buckets_ > 0) {
    // The last hash whose home is before that bucket: floor(hash * buckets / 2^64) < moved.
    using Wide = unsigned __int128;
    const Wide buckets = ref.former.num_buckets;
    const Wide first_not = ((static_cast<Wide>(moved_buckets_) << 64) + buckets - 1) / buckets;
    ref.last_moved = static_cast<uint64_t>(first_not - 1);
  }
  return ref;
}

void GrowingIndex::Begin(int64_t num_slots) {
  wanted_ = (num_slots + kBucketSlots - 1) / kBucketSlots * kBucketSlots;
  cleared_bytes_ = 0;
}

bool GrowingIndex::MakeArea(const Work& work, cudaStream_t stream, Status* error) {
  if (is_moving_) return true;
  DeviceMemory& next = former();
  const int64_t bytes = wanted_ * kSlotBytes;
  const int64_t end = std::min(bytes, cleared_bytes_ + work.bytes);
  *error = next.Grow(end);
  if (!error->ok()) return false;
  *error =
      CudaStatus(cudaMemsetAsync(next.data() + cleared_bytes_, 0xFF, end - cleared_bytes_, stream));
  if (!error->ok()) return false;
  cleared_bytes_ = end;
  if (end < bytes) return false;
  current_ = 1 - current_;
  slots_[current_] = wanted_;
  is_moving_ = true;
  moved_buckets_ = 0;
  return true;
}

cudaError_t GrowingIndex::Move(DeviceTableRef table, const Work& work, cudaStream_t stream) {
  const int64_t num_buckets = slots_[1 - current_] / kBucketSlots;
  const int64_t end = std::min(num_buckets, moved_buckets_ + work.slots / kBucketSlots);
  if (end > moved_buckets_) {
    const Moved moved = {ref(), static_cast<uint64_t>(moved_buckets_), static_cast<uint64_t>(end)};
    const int64_t num_slots = (end - moved_buckets_) * kBucketSlots;
    const auto blocks = static_cast<unsigned>((num_slots + kThreads - 1) / kThreads);
    MoveKeysKernel<<<blocks + 1, kThreads, 0, stream>>>(table, moved);
  }
  moved_buckets_ = end;
  if (end < num_buckets) return cudaGetLastError();
  is_moving_ = false;
  wanted_ = slots_[1 - current_] = 0;
  cudaEventRecord(moved_, stream);
  return cudaGetLastError();
}

cudaError_t GrowingIndex::Clear(cudaStream_t stream) {
  is_moving_ = false;
  wanted_ = slots_[1 - current_] = 0;
  const cudaError_t failed =
      cudaMemsetAsync(areas_[current_]->data(), 0xFF, slots_[current_] * kSlotBytes, stream);
  cudaEventRecord(moved_, stream);
  return failed;
}

void GrowingIndex::ReleaseFormer() {
  if (is_growing() || former().bytes() == 0 || cudaEventQuery(moved_) != cudaSuccess) return;
  former().Release(kReleasedBytes);
}

}  // namespace group_embedding
