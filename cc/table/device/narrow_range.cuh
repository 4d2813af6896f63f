// Finds the lowest of many numbers by all blocks of a cooperative launch, without sorting any: each
// pass counts the numbers of a range in bins, and the bin in which the last of the lowest lies is
// the range of the next pass. A sample says where the first pass has narrow bins.
#pragma once

#include <cooperative_groups.h>

#include "core/descriptors.cuh"
#include "core/host_device.h"

namespace group_embedding {

inline constexpr int kPlaceThreads = 512;  // of a block of the launch
inline constexpr int kBinBits = 12, kBins = 1 << kBinBits;

// In device memory; between launches as Clear() leaves it.
struct NarrowState {
  static constexpr int kNumSamples = 64;  // in a launch
  struct Sample {
    unsigned long long lowest, highest;
  };
  Sample samples[kNumSamples];
  unsigned long long bins[3][kBins];  // of the pass, of the one before, and those of the next

  __device__ void Clear(int64_t thread, int64_t num_threads) {
    for (int64_t i = thread; i < 3 * kBins; i += num_threads)
      __stcg(&bins[i / kBins][i % kBins], 0);
    if (thread < kNumSamples) samples[thread] = {~0ULL, 0};
  }
};

struct NumberRange {
  uint64_t lowest = 0, highest = ~uint64_t{0};  // both are in it
};

// The lowest numbers are those below `lowest`, and `left` of those in the range.
struct NarrowRange {
  uint64_t lowest, highest;  // both are in it
  int64_t left;
  bool takes_all;  // all in the range are among the lowest

  __device__ bool Has(uint64_t number) const { return number >= lowest && number <= highest; }
  __device__ bool Takes(uint64_t number) const {
    return number < lowest || (takes_all && number <= highest);
  }
};

// The sum over the threads of the block before this one; *total: over all.
__device__ inline int64_t BlockScan(int64_t value, int64_t* total) {
  __shared__ int64_t of_warps[kPlaceThreads / kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int64_t sum = value;
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int64_t before = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += before;
  }
  __syncthreads();  // nobody reads the sums of a former call
  if (lane == kWarpSize - 1) of_warps[warp] = sum;
  __syncthreads();
  int64_t before_warp = 0, all = 0;
  for (int w = 0; w < kPlaceThreads / kWarpSize; ++w) {
    if (w < warp) before_warp += of_warps[w];
    all += of_warps[w];
  }
  *total = all;
  return before_warp + sum - value;
}

class Narrowing {
 public:
  __device__ explicit Narrowing(NarrowState* state)
      : state_(*state), grid_(cooperative_groups::this_grid()) {}

  // The range of one number, or one that takes all, in which the last of the `wanted` lowest lies.
  // for_each(use) calls use(number, is_one) for each number, in whole warps. likely: where most
  // are.
  template <typename ForEach>
  __device__ NarrowRange Find(int64_t wanted, const ForEach& for_each, NumberRange likely = {}) {
    NarrowRange range = {0, ~uint64_t{0}, wanted, false};
    while (!range.takes_all && range.lowest < range.highest) {
      Narrow(&range, likely, for_each);
      likely = {range.lowest, range.highest};
    }
    return range;
  }

  // The range of those numbers; all, if there are none, or the launch has had all its samples.
  template <typename ForEach>
  __device__ NumberRange RangeOf(const ForEach& for_each) {
    if (num_samples_ == NarrowState::kNumSamples) return {};
    unsigned long long lowest = ~0ULL, highest = 0;
    for_each([&](uint64_t number, bool is_one) {
      if (!is_one) return;
      lowest = number < lowest ? number : lowest;
      highest = number > highest ? number : highest;
    });
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      const auto other_lowest = __shfl_xor_sync(kFullWarp, lowest, offset);
      const auto other_highest = __shfl_xor_sync(kFullWarp, highest, offset);
      lowest = other_lowest < lowest ? other_lowest : lowest;
      highest = other_highest > highest ? other_highest : highest;
    }
    NarrowState::Sample& sample = state_.samples[num_samples_++];
    if (threadIdx.x % kWarpSize == 0 && lowest <= highest) {
      atomicMin(&sample.lowest, lowest);
      atomicMax(&sample.highest, highest);
    }
    grid_.sync();
    lowest = __ldcg(&sample.lowest);
    highest = __ldcg(&sample.highest);
    return lowest <= highest ? NumberRange{lowest, highest} : NumberRange{};
  }

 private:
  // Bin 0 is below the likely range and the last bin above it; equal bins between them.
  struct Bins {
    NumberRange likely;
    int shift;

    static constexpr int kLast = kBins / 2 + 1;

    __device__ explicit Bins(const NumberRange& range) : likely(range) {
      const int num_bits = 64 - __clzll(static_cast<long long>(range.highest - range.lowest));
      shift = num_bits > kBinBits - 1 ? num_bits - (kBinBits - 1) : 0;
    }
    __device__ int BinOf(uint64_t number) const {
      if (number < likely.lowest) return 0;
      return number > likely.highest ? kLast
                                     : 1 + static_cast<int>((number - likely.lowest) >> shift);
    }
    // The numbers of the range that are in the bin.
    __device__ NumberRange RangeOfBin(int bin, const NarrowRange& range) const {
      if (bin == 0) return {range.lowest, likely.lowest - 1};
      if (bin == kLast) return {likely.highest + 1, range.highest};
      const uint64_t lowest = likely.lowest + (static_cast<uint64_t>(bin - 1) << shift);
      const uint64_t width = (uint64_t{1} << shift) - 1;
      const bool is_cut = likely.highest - lowest < width;
      return {lowest, is_cut ? likely.highest : lowest + width};
    }
  };

  template <typename ForEach>
  __device__ void Narrow(NarrowRange* range, const NumberRange& likely, const ForEach& for_each) {
    __shared__ unsigned counts[kBins];
    __shared__ NarrowRange next;
    const Bins bins(likely);
    unsigned long long* sums = state_.bins[num_passes_ % 3];
    Empty(counts, state_.bins[(num_passes_ + 1) % 3]);
    ++num_passes_;
    __syncthreads();
    for_each([&](uint64_t number, bool is_one) {
      Count(counts, is_one && range->Has(number) ? bins.BinOf(number) : -1);
    });
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kPlaceThreads) {
      if (counts[i] > 0) atomicAdd(&sums[i], static_cast<unsigned long long>(counts[i]));
    }
    grid_.sync();
    Choose(sums, bins, *range, &next);
    __syncthreads();
    *range = next;
    __syncthreads();
  }

  // The numbers of neighbours are often in the same bin.
  __device__ static void Count(unsigned* counts, int bin) {
    int are_same = 0;
    __match_all_sync(kFullWarp, bin, &are_same);
    if (bin < 0) return;
    if (!are_same) {
      atomicAdd(&counts[bin], 1u);
    } else if (threadIdx.x % kWarpSize == 0) {
      atomicAdd(&counts[bin], static_cast<unsigned>(kWarpSize));
    }
  }

  __device__ void Empty(unsigned* counts, unsigned long long* sums_of_next) const {
    for (int i = threadIdx.x; i < kBins; i += kPlaceThreads) counts[i] = 0;
    const int64_t stride = int64_t{gridDim.x} * kPlaceThreads;
    for (int64_t i = int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x; i < kBins; i += stride) {
      __stcg(&sums_of_next[i], 0ULL);
    }
  }

  // A thread has some bins; the one in which the last of the lowest lies writes the next range.
  __device__ static void Choose(const unsigned long long* sums, const Bins& bins,
                                const NarrowRange& range, NarrowRange* next) {
    constexpr int kEach = kBins / kPlaceThreads;
    int64_t of_bins[kEach], sum = 0, total;
    for (int i = 0; i < kEach; ++i) {
      of_bins[i] = static_cast<int64_t>(__ldcg(&sums[threadIdx.x * kEach + i]));
      sum += of_bins[i];
    }
    int64_t before = BlockScan(sum, &total);
    if (range.left >= total && threadIdx.x == 0) {
      *next = {range.lowest, range.highest, range.left, true};
    }
    for (int i = 0; i < kEach && range.left < total; before += of_bins[i++]) {
      if (range.left <= before || range.left > before + of_bins[i]) continue;
      const NumberRange of_bin = bins.RangeOfBin(threadIdx.x * kEach + i, range);
      const int64_t left = range.left - before;
      *next = {of_bin.lowest, of_bin.highest, left, left == of_bins[i]};
    }
  }

  NarrowState& state_;
  cooperative_groups::grid_group grid_;
  int num_samples_ = 0, num_passes_ = 0;
};

}  // namespace group_embedding
