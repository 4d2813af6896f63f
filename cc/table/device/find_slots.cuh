// The search of the index: a warp finds 32 keys, four threads reading a bucket at a time.
#pragma once

#include "table/device/locate_rows.cuh"

namespace group_embedding {

// The result of a search.
struct FoundKey {
  int64_t row = kNoRow;
  uint64_t claim = 0;         // to train
  int64_t met_candidate = 0;  // the number of the candidate that the key is, + 1; 0: it is none
};

// Searches for one key per lane; all lanes of a warp call it together. Four lanes are a team: they
// read the buckets of their four keys one after the other, all at once.
template <bool kTrain>
class SlotSearch {
 public:
  __device__ SlotSearch(const LocateArgs& args, const LocatePlace& place, int64_t key)
      : SlotSearch(args, place, key, place.table.index.slots,
                   place.table.index.AreaOf(IndexRef::HashOf(key)), place.is_key) {}
  // In other slots than the table's.
  __device__ SlotSearch(const LocateArgs& args, const LocatePlace& place, int64_t key,
                        uint64_t* slots, const IndexArea& area, bool is_wanted)
      : args_(args),
        table_(place.table),
        slots_(slots),
        area_(area),
        position_(place.position()),
        key_(key) {
    const uint64_t hash = IndexRef::HashOf(key);
    bucket_ = is_wanted ? IndexRef::Home(area_, hash) : kNoBucket;
    query_ = IndexRef::TagOf(hash) << kBucketSlots;
  }

  __device__ FoundKey Run() {
    while (__any_sync(kFullWarp, bucket_ != kNoBucket)) {
      const Met met = ReadBuckets();
      if (bucket_ == kNoBucket) continue;
      if (met.at >= 0) {
        Check(met);
      } else if (met.empty_at < 0) {
        bucket_ = IndexRef::Next(area_, bucket_);
        query_ = query_ >> kBucketSlots << kBucketSlots;
      } else if (!kTrain) {
        bucket_ = kNoBucket;
      } else {
        Claim(met.empty_at);
      }
    }
    return found_;
  }

 private:
  static constexpr int kTeam = 4;
  static constexpr uint64_t kNoBucket = ~uint64_t{0};

  struct Met {
    uint64_t word;      // of the first slot with the key's tag
    int at = -1;        // its index in the bucket, or -1
    int empty_at = -1;  // the first empty slot's, or -1
  };

  __device__ Met ReadBuckets() const {
    const int lane = threadIdx.x % kTeam, team_shift = threadIdx.x % kWarpSize - lane;
    ulonglong2 words[kTeam];
#pragma unroll
    for (int j = 0; j < kTeam; ++j) {
      const uint64_t bucket = __shfl_sync(kFullWarp, bucket_, j, kTeam);
      words[j] = {kErasedSlot, kErasedSlot};
      if (bucket != kNoBucket) {
        words[j] = __ldcg(reinterpret_cast<const ulonglong2*>(SlotOf(bucket, 2 * lane)));
      }
    }
    Met mine;
#pragma unroll
    for (int j = 0; j < kTeam; ++j) {
      const uint32_t query = __shfl_sync(kFullWarp, query_, j, kTeam);
      const uint32_t tag = query >> kBucketSlots, others = query >> (2 * lane);
      const bool in_x = SlotWord::Tag(words[j].x) == tag && !(others & 1);
      const bool in_y = SlotWord::Tag(words[j].y) == tag && !(others & 2);
      const bool x_empty = words[j].x == kEmptySlot, y_empty = words[j].y == kEmptySlot;
      const unsigned met = __ballot_sync(kFullWarp, in_x || in_y) >> team_shift & 0xF;
      const unsigned empty = __ballot_sync(kFullWarp, x_empty || y_empty) >> team_shift & 0xF;
      const int met_lane = met == 0 ? 0 : __ffs(met) - 1;
      const uint64_t word = __shfl_sync(kFullWarp, in_x ? words[j].x : words[j].y, met_lane, kTeam);
      const int at = __shfl_sync(kFullWarp, 2 * lane + !in_x, met_lane, kTeam);
      int empty_at = 0;
      if (kTrain) {
        empty_at =
            __shfl_sync(kFullWarp, 2 * lane + !x_empty, empty == 0 ? 0 : __ffs(empty) - 1, kTeam);
      }
      if (lane == j) mine = {word, met == 0 ? -1 : at, empty == 0 ? -1 : empty_at};
    }
    return mine;
  }

  __device__ uint64_t* SlotOf(uint64_t bucket, int i) const {
    return slots_ + bucket * kBucketSlots + i;
  }
  __device__ unsigned long long* Slot(int at) const {
    return reinterpret_cast<unsigned long long*>(SlotOf(bucket_, at));
  }
  __device__ void EndAt(int at) {
    const auto* begin = reinterpret_cast<unsigned long long*>(slots_);
    found_.claim = MakeClaim(ClaimKind::kSlot, Slot(at) - begin);
    bucket_ = kNoBucket;
  }
  __device__ uint64_t OwnClaim() const {
    return SlotWord::Make(query_ >> kBucketSlots, SlotKind::kClaim, position_);
  }

  // A slot has the key's tag: is it the key's?
  __device__ void Check(const Met& met) {
    const int64_t number = SlotWord::Number(met.word);
    switch (SlotWord::Kind(met.word)) {
      case SlotKind::kRow:
        if (table_.KeyOfRow(number) != key_) break;
        found_.row = number;
        bucket_ = kNoBucket;
        return;
      case SlotKind::kCandidate:
        if (__ldcg(&table_.candidates[number].key) != key_) break;
        if (!kTrain) {
          found_.met_candidate = number + 1;
          bucket_ = kNoBucket;
        } else if (atomicCAS(Slot(met.at), met.word, OwnClaim()) == met.word) {
          found_.met_candidate = number + 1;
          EndAt(met.at);
        }  // else another occurrence was faster, and the next look meets its claim
        return;
      case SlotKind::kClaim:
        // A reader cannot know whose it is; if its key's, that has no row yet.
        if (!kTrain) break;
        const LocateTask& task = TaskAt(args_, number);
        if (task.keys[number - task.first_position] != key_) break;
        atomicMin(&args_.firsts[number], static_cast<uint32_t>(position_));
        found_.claim = MakeClaim(ClaimKind::kFollower, number);
        bucket_ = kNoBucket;
        return;
    }
    query_ |= 1u << met.at;
  }

  // Another thread may take the slot first; the next read of the bucket then shows it.
  __device__ void Claim(int at) {
    if (atomicCAS(Slot(at), kEmptySlot, OwnClaim()) == kEmptySlot) EndAt(at);
  }

  const LocateArgs& args_;
  const DeviceTableRef& table_;
  uint64_t* const slots_;
  const IndexArea area_;
  const int64_t position_, key_;
  uint64_t bucket_;  // to be looked at, or kNoBucket: the search has ended
  uint32_t query_;   // the tag, and a bit for each slot of the bucket that has it and another key
  FoundKey found_;
};

}  // namespace group_embedding
