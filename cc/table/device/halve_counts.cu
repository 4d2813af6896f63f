#include <cooperative_groups.h>

#include "table/device/budget_shares.cuh"
#include "table/device/device_table_ref.cuh"
#include "table/device/halve_counts.h"
#include "table/device/narrow_range.cuh"

namespace group_embedding {
namespace {

// All threads call all methods together. A thread has the same candidates each time.
class CountHalver {
 public:
  __device__ CountHalver(const DeviceTableRef& table, const PlacesArgs& places)
      : table_(table),
        state_(*table.state),
        shares_(places.shares),
        of_shares_(places.new_of_share),
        grid_(cooperative_groups::this_grid()),
        num_candidates_(__ldcg(&state_.next_candidate)) {}

  __device__ void Run() {
    // The counts of one share are known without looking.
    const int64_t num_counted = num_candidates_ - __ldcg(&state_.num_free_candidates);
    if (shares_.count == 1 && num_counted <= shares_.limits[0].max_keys) return;
    for (CountOfShares(); IsAnyOver(); CountOfShares()) {
      ForCandidates([&](int64_t candidate, int64_t key, int64_t count) {
        if (count > 0 && IsOver(ShareOf(shares_, key))) Halve(candidate, key, count);
      });
      grid_.sync();  // nobody reads the counts of shares any more
    }
  }

 private:
  // Calls use(candidate, key, count) in whole warps; a count of 0: it is no key's.
  template <typename Use>
  __device__ void ForCandidates(const Use& use) const {
    const int lane = threadIdx.x % kWarpSize;
    const int64_t stride = int64_t{gridDim.x} * kPlaceThreads;
    for (int64_t first = int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x - lane;
         first < num_candidates_; first += stride) {
      const int64_t i = first + lane;
      const Candidate found = i < num_candidates_ ? table_.candidates[i] : Candidate{0, 0};
      use(i, found.key, found.count);
    }
  }

  __device__ void CountOfShares() const {
    const int64_t thread = int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x;
    if (thread < shares_.count) __stcg(&of_shares_[thread], 0ULL);
    grid_.sync();
    ForCandidates([&](int64_t, int64_t key, int64_t count) {
      AddToShare(of_shares_, count > 0 ? ShareOf(shares_, key) : kAnyShare, count > 0);
    });
    grid_.sync();
  }

  __device__ bool IsOver(int64_t share) const {
    return static_cast<int64_t>(__ldcg(&of_shares_[share])) > shares_.limits[share].max_keys;
  }
  __device__ bool IsAnyOver() const {
    bool any = false;
    for (int64_t s = 0; s < shares_.count; ++s) any = any || IsOver(s);
    return any;
  }

  __device__ void Halve(int64_t candidate, int64_t key, int64_t count) const {
    table_.candidates[candidate].count = count / 2;
    if (count > 1) return;
    const uint64_t hash = IndexRef::HashOf(key);
    const uint64_t word = SlotWord::Make(IndexRef::TagOf(hash), SlotKind::kCandidate, candidate);
    if (table_.index.TakeOut(hash, word)) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&state_.used_slots), ~0ULL);
    }
    const auto place =
        atomicAdd(reinterpret_cast<unsigned long long*>(&state_.num_free_candidates), 1ULL);
    table_.free_candidates[place] = candidate;
  }

  const DeviceTableRef& table_;
  TableState& state_;
  const BudgetShares& shares_;
  unsigned long long* const of_shares_;  // [shares_.count]
  cooperative_groups::grid_group grid_;
  const int64_t num_candidates_;
};

__global__ void __launch_bounds__(kPlaceThreads, 2)
    HalveCountsKernel(DeviceTableRef table, PlacesArgs places) {
  CountHalver(table, places).Run();
}

}  // namespace

cudaError_t HalveCounts(const DeviceTableRef& table, const PlacesArgs& places,
                        cudaStream_t stream) {
  DeviceTableRef of_call = table;
  PlacesArgs of_table = places;
  void* arguments[] = {&of_call, &of_table};
  // As many blocks as of MakePlaces, whose kernel takes more registers, are there together.
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&HalveCountsKernel),
                                     dim3(static_cast<unsigned>(places.num_blocks)),
                                     dim3(kPlaceThreads), arguments, 0, stream);
}

}  // namespace group_embedding
