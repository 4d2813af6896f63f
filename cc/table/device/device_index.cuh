// The index of a table on the device, key -> row number: open addressing in buckets of 64 bytes,
// each read by four threads at once.
//
// A slot of the index is one 64-bit word: 24 bits of the key's hash, a kind, and a number of 38
// bits. It does not contain the key, which is found through the number. So every key is legal,
// every change of a slot is one atomic operation, and an index can be rebuilt from the rows' infos
// alone.
//
//   kRow        the key's row                       -> infos[number].key
//   kCandidate  a key that is counted, without row  -> candidates[number].key
//   kClaim      a key that is new in this call      -> its position in the call
//
// A search goes from bucket to bucket until one has an empty slot. While keys are claimed no slot
// becomes empty, so that all occurrences of a key find the same slot.
#pragma once

#include <cstdint>

#include "table/embedding_table.h"

namespace group_embedding {

inline constexpr int kBucketSlots = 8;
inline constexpr uint64_t kEmptySlot = ~uint64_t{0};
inline constexpr uint64_t kErasedSlot = ~uint64_t{1};
inline constexpr uint64_t kMovedSlot = ~uint64_t{2};  // its key is in another area
inline constexpr int64_t kBucketBytes = kBucketSlots * sizeof(uint64_t);

enum class SlotKind : uint32_t { kRow = 0, kCandidate = 1, kClaim = 2 };

// One word of the index, taken apart.
struct SlotWord {
  static constexpr int kNumberBits = 38, kKindBits = 2;
  static constexpr uint32_t kNoTag = 0xFFFFFF;  // of slots without a number

  GROUP_EMBEDDING_HOST_DEVICE static uint64_t Make(uint32_t tag, SlotKind kind, int64_t number) {
    return uint64_t{tag} << (kNumberBits + kKindBits) | uint64_t(kind) << kNumberBits |
           static_cast<uint64_t>(number);
  }
  GROUP_EMBEDDING_HOST_DEVICE static uint32_t Tag(uint64_t word) {
    return static_cast<uint32_t>(word >> (kNumberBits + kKindBits));
  }
  GROUP_EMBEDDING_HOST_DEVICE static SlotKind Kind(uint64_t word) {
    return static_cast<SlotKind>(word >> kNumberBits & 3);
  }
  GROUP_EMBEDDING_HOST_DEVICE static int64_t Number(uint64_t word) {
    return static_cast<int64_t>(word & ((uint64_t{1} << kNumberBits) - 1));
  }
  // The word with another kind and number, and the same bits of the key's hash.
  GROUP_EMBEDDING_HOST_DEVICE static uint64_t With(uint64_t word, SlotKind kind, int64_t number) {
    return Make(Tag(word), kind, number);
  }
};

struct IndexArea {
  uint64_t first, num_buckets;
};

struct IndexRef {
  uint64_t* slots;  // [buckets, kBucketSlots] of all areas
  // Keys are looked for in one area alone: in `area`, but while an index grows (growing_index.h),
  // those whose hash is greater than `last_moved` in `former`.
  IndexArea area, former;
  uint64_t last_moved;

  GROUP_EMBEDDING_HOST_DEVICE static uint64_t HashOf(int64_t key) {
    return MixBits(static_cast<uint64_t>(key));
  }
  GROUP_EMBEDDING_HOST_DEVICE static uint32_t TagOf(uint64_t hash) {
    const uint32_t tag = static_cast<uint32_t>(hash) & 0xFFFFFF;
    return tag == SlotWord::kNoTag ? 0 : tag;
  }
#ifdef __CUDACC__
  __device__ IndexArea AreaOf(uint64_t hash) const { return hash > last_moved ? former : area; }
  __device__ static uint64_t Home(const IndexArea& area, uint64_t hash) {
    return area.first + __umul64hi(hash, area.num_buckets);
  }
  __device__ static uint64_t Next(const IndexArea& area, uint64_t bucket) {
    return bucket + 1 == area.first + area.num_buckets ? area.first : bucket + 1;
  }
  __device__ uint64_t* Slot(uint64_t bucket, int i) const {
    return slots + bucket * kBucketSlots + i;
  }
  __device__ bool HasEmpty(uint64_t bucket) const {
    for (int i = 0; i < kBucketSlots; ++i) {
      if (__ldcg(Slot(bucket, i)) == kEmptySlot) return true;
    }
    return false;
  }

  // Puts a key there that has no slot; other threads may do the same for other keys.
  __device__ void PutInto(const IndexArea& in, uint64_t hash, SlotKind kind, int64_t number) const {
    const uint64_t word = SlotWord::Make(TagOf(hash), kind, number);
    for (uint64_t bucket = Home(in, hash);; bucket = Next(in, bucket)) {
      for (int i = 0; i < kBucketSlots; ++i) {
        auto* slot = reinterpret_cast<unsigned long long*>(Slot(bucket, i));
        if (__ldcg(slot) == kEmptySlot && atomicCAS(slot, kEmptySlot, word) == kEmptySlot) return;
      }
    }
  }

  // Frees a slot of that bucket, while nothing is put anywhere. A search that came to the bucket
  // before must not end there now, if it went on then.
  __device__ void Free(uint64_t* slot) const {
    const uint64_t bucket = (slot - slots) / kBucketSlots;
    __stcg(slot, HasEmpty(bucket) ? kEmptySlot : kErasedSlot);
  }
  // Frees the slot that has a word of that hash, in the same way; whether it is empty now.
  __device__ bool TakeOut(uint64_t hash, uint64_t word) const {
    bool has_empty;
    uint64_t* const slot = Find(hash, word, &has_empty);
    __stcg(slot, has_empty ? kEmptySlot : kErasedSlot);
    return has_empty;
  }
  // Writes another word of the same hash into its slot.
  __device__ void Replace(uint64_t hash, uint64_t word, uint64_t other) const {
    bool has_empty;
    __stcg(Find(hash, word, &has_empty), other);
  }

 private:
  // The slot that has a word of that hash; whether its bucket has an empty one. Reads a bucket at
  // once.
  __device__ uint64_t* Find(uint64_t hash, uint64_t word, bool* has_empty) const {
    const IndexArea in = AreaOf(hash);
    for (uint64_t bucket = Home(in, hash);; bucket = Next(in, bucket)) {
      ulonglong2 pairs[kBucketSlots / 2];
      for (int i = 0; i < kBucketSlots / 2; ++i) {
        pairs[i] = __ldcg(reinterpret_cast<const ulonglong2*>(Slot(bucket, 2 * i)));
      }
      int at = -1;
      *has_empty = false;
      for (int i = 0; i < kBucketSlots / 2; ++i) {
        if (pairs[i].x == word) at = 2 * i;
        if (pairs[i].y == word) at = 2 * i + 1;
        *has_empty = *has_empty || pairs[i].x == kEmptySlot || pairs[i].y == kEmptySlot;
      }
      if (at >= 0) return Slot(bucket, at);
    }
  }
#endif
};

}  // namespace group_embedding
