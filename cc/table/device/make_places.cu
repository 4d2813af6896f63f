#include <algorithm>

#include "table/device/locate_rows.cuh"
#include "table/device/make_places.h"
#include "table/device/places_state.cuh"
#include "table/device/row_copies.cuh"

namespace group_embedding {
namespace {

constexpr int kRowsOfWord = 32;
constexpr int64_t kSampledWords = 4096;  // from which on one in so many groups is sampled:
constexpr int64_t kSampleEach = 32;
constexpr int kCount = 0, kVersion = 1, kHash = 2;
constexpr int64_t kAlwaysFree = 0;  // the clock of a free row that no batch can hold

// A launch for one table. All threads call all methods together.
class PlaceMaker {
 public:
  __device__ PlaceMaker(const LocateArgs& args, const PlacesArgs& places)
      : args_(args),
        p_(places),
        table_(args.tables[places.table]),
        state_(*table_.state),
        grid_(cooperative_groups::this_grid()),
        narrowing_(&places.state->narrow) {}

  __device__ void Run() {
    const int64_t num_new = CountNew();
    const int64_t num_keys = __ldcg(&state_.num_keys), num_free = __ldcg(&state_.num_free);
    next_row_ = __ldcg(&state_.next_row);
    const int64_t num_unused = table_.usable_rows - next_row_;
    const bool is_over = num_keys + num_new > p_.max_keys;
    if (!is_over && num_new <= num_free + num_unused) return;
    // As Budget::NumKept says.
    const int64_t beside_new = max(p_.max_keys - num_new, int64_t{0});
    EvictLowest(is_over ? max(num_keys - min(p_.low_keys, beside_new), int64_t{0}) : 0);
    int64_t num_free_now, num_gone;
    ListRows(&num_free_now, &num_gone);
    const int64_t places =
        max(min(p_.max_keys - (num_keys - num_gone), num_free_now + num_unused), int64_t{0});
    if (num_new > places) LeaveOut(num_new - places);
    grid_.sync();
    p_.state->narrow.Clear(Thread(), NumThreads());
    if (Thread() != 0) return;
    state_.num_keys = num_keys - num_gone;
    state_.num_free = num_free_now;
    p_.state->num_evicted += num_gone;
    p_.state->num_without_place += max(num_new - places, int64_t{0});
  }

 private:
  __device__ static int64_t Thread() { return int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x; }
  __device__ int64_t NumThreads() const { return p_.num_blocks * kPlaceThreads; }
  __device__ int64_t NumWords() const { return (next_row_ + kRowsOfWord - 1) / kRowsOfWord; }

  // Calls use(position, is_one) for the table's positions, in whole warps of all blocks.
  template <typename Use>
  __device__ void ForPositions(const Use& use) const {
    const int64_t begin = args_.table_positions[p_.table];
    const int64_t end = args_.table_positions[p_.table + 1];
    const int lane = threadIdx.x % kWarpSize;
    for (int64_t first = begin + Thread() - lane; first < end; first += NumThreads()) {
      const int64_t position = first + lane;
      use(position, position < end && __ldcg(&args_.gets_row[position]) != 0);
    }
  }

  __device__ int64_t CountNew() const {
    int64_t mine = 0, of_block;
    ForPositions([&](int64_t, bool is_new) { mine += is_new; });
    BlockScan(mine, &of_block);
    if (threadIdx.x == 0 && of_block > 0) {
      atomicAdd(&p_.state->num_new, static_cast<unsigned long long>(of_block));
    }
    grid_.sync();
    return static_cast<int64_t>(__ldcg(&p_.state->num_new));
  }

  // Calls use(word, row, is_one) in whole warps, which have the 32 rows of a word of the bits: for
  // all rows, or those with the bit of a tie; of one in `each` groups of words. A warp has the same
  // rows each time.
  template <typename Use>
  __device__ void ForRows(bool all, int64_t each, const Use& use) const {
    const int lane = threadIdx.x % kWarpSize;
    const int64_t num_words = NumWords(), stride = each * NumThreads() / kWarpSize;
    int64_t group = each * (Thread() / kWarpSize) + each / 2;
    for (; group * kWarpSize < num_words; group += stride) {
      const int64_t my_word = group * kWarpSize + lane;
      uint32_t mine = 0;
      if (my_word < num_words) mine = all ? ~0u : __ldcg(&p_.tied[my_word]);
      for (unsigned left = __ballot_sync(kFullWarp, mine != 0); left != 0; left &= left - 1) {
        const int from = __ffs(left) - 1;
        const uint32_t bits = __shfl_sync(kFullWarp, mine, from);
        const int64_t word = group * kWarpSize + from, row = word * kRowsOfWord + lane;
        use(word, row, (bits >> lane & 1) != 0 && row >= table_.first_row && row < next_row_);
      }
    }
  }

  __device__ RowInfo InfoOf(int64_t row) const {
    const auto* halves = reinterpret_cast<const longlong2*>(&table_.infos[row]);
    const longlong2 first = __ldcg(halves), second = __ldcg(halves + 1);
    return {first.x, first.y, second.x, second.y};
  }
  __device__ bool MayGo(const RowInfo& info) const {
    return info.count >= 0 && info.clock < p_.held_from;
  }

  // The numbers by which keys are compared, one after the other.
  __device__ static uint64_t NumberOf(const RowInfo& info, int which) {
    if (which == kCount) return static_cast<uint64_t>(info.count);
    if (which == kVersion) return eviction_order::OfInteger(info.version);
    return IndexRef::HashOf(info.key);
  }

  __device__ void EvictLowest(int64_t num_to_go) {
    bool all = true;  // rows are looked at, as none is known to be tied
    int which = p_.first == EvictFirst::kLeastRecent ? kVersion : kCount;
    for (int64_t left = num_to_go; left > 0; ++which, all = false) {
      const auto numbers = [&](int64_t each, const auto& use) {
        ForRows(all, each, [&](int64_t, int64_t row, bool is_one) {
          const RowInfo info = is_one ? InfoOf(row) : RowInfo{0, -1, -1, 0};
          use(NumberOf(info, which), MayGo(info));
        });
      };
      NumberRange likely;  // of hashes: all
      if (which < kHash) {
        const int64_t each = NumWords() < kSampledWords ? 1 : kSampleEach;
        likely = narrowing_.RangeOf([&](const auto& use) { numbers(each, use); });
      }
      const auto all_numbers = [&](const auto& use) { numbers(1, use); };
      const NarrowRange range = narrowing_.Find(left, all_numbers, likely);
      Evict(range, which, all);
      left = range.takes_all ? 0 : range.left;
    }
    if (all) Evict({0, 0, 0, false}, which, all);  // nothing, but knows the free rows
  }

  // Evicts those that the range takes; those in it are tied.
  __device__ void Evict(const NarrowRange& range, int which, bool all) {
    const int lane = threadIdx.x % kWarpSize;
    int64_t num_emptied = 0;
    ForRows(all, 1, [&](int64_t word, int64_t row, bool is_one) {
      const RowInfo info = is_one ? InfoOf(row) : RowInfo{0, -1, -1, INT64_MAX};
      const uint64_t number = NumberOf(info, which);
      const bool goes = MayGo(info) && range.Takes(number);
      const bool is_tied = MayGo(info) && !goes && range.Has(number);
      const bool is_free = is_one && info.count < 0 && info.clock < p_.reuse_from;
      if (table_.copies != nullptr) {
        CopyForSnapshot(*table_.copies, goes ? row : kNoRow);
        __syncwarp();  // all lanes copy each row
      }
      if (goes) num_emptied += TakeOut(row, info);
      const unsigned ties = __ballot_sync(kFullWarp, is_tied);
      const unsigned gone = __ballot_sync(kFullWarp, goes);
      const unsigned free = __ballot_sync(kFullWarp, is_free || (goes && IsFreeAtOnce()));
      if (lane != 0) return;
      __stcg(&p_.tied[word], ties);
      __stcg(&p_.gone[word], all ? gone : __ldcg(&p_.gone[word]) | gone);
      __stcg(&p_.free[word], all ? free : __ldcg(&p_.free[word]) | free);
    });
    __syncwarp();  // the lanes of the warp read its ties
    int64_t of_block;
    BlockScan(num_emptied, &of_block);
    if (threadIdx.x == 0 && of_block > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&state_.used_slots),
                ~static_cast<unsigned long long>(of_block) + 1);
    }
  }

  __device__ bool IsFreeAtOnce() const { return table_.clock < p_.reuse_from; }

  // Returns whether the index has a slot in use less.
  __device__ bool TakeOut(int64_t row, const RowInfo& info) const {
    const int64_t clock = IsFreeAtOnce() ? kAlwaysFree : table_.clock;
    auto* halves = reinterpret_cast<longlong2*>(&table_.infos[row]);
    __stcg(halves, longlong2{info.key, -1});
    __stcg(halves + 1, longlong2{info.version, clock});
    const uint64_t hash = IndexRef::HashOf(info.key);
    return table_.index.TakeOut(hash, SlotWord::Make(IndexRef::TagOf(hash), SlotKind::kRow, row));
  }

  // Lists the free rows, the lowest last, as it is taken first, and the keys that went. A block has
  // some words of the bits, one after the other.
  __device__ void ListRows(int64_t* num_free, int64_t* num_gone) {
    const int64_t each = (NumWords() + p_.num_blocks - 1) / p_.num_blocks;
    const int64_t begin = min(each * blockIdx.x, NumWords()), end = min(begin + each, NumWords());
    int64_t my_free = 0, my_gone = 0, free_of_block, gone_of_block;
    grid_.sync();  // all bits are there
    for (int64_t word = begin + threadIdx.x; word < end; word += kPlaceThreads) {
      my_free += __popc(__ldcg(&p_.free[word]));
      my_gone += __popc(__ldcg(&p_.gone[word]));
    }
    BlockScan(my_free, &free_of_block);
    BlockScan(my_gone, &gone_of_block);
    if (threadIdx.x == 0) {
      __stcg(&p_.num_free_of_blocks[blockIdx.x], free_of_block);
      __stcg(&p_.num_gone_of_blocks[blockIdx.x], gone_of_block);
    }
    grid_.sync();
    int64_t free_before = BeforeBlock(p_.num_free_of_blocks, num_free);
    int64_t gone_before = BeforeBlock(p_.num_gone_of_blocks, num_gone);
    *num_free = min(*num_free, p_.max_free);
    for (int64_t first = begin; first < end; first += kPlaceThreads) {
      const int64_t word = first + threadIdx.x;
      const uint32_t free = word < end ? __ldcg(&p_.free[word]) : 0;
      const uint32_t gone = word < end ? __ldcg(&p_.gone[word]) : 0;
      int64_t free_here, gone_here;
      const int64_t free_at = free_before + BlockScan(__popc(free), &free_here);
      const int64_t gone_at = gone_before + BlockScan(__popc(gone), &gone_here);
      ListFree(word, free, free_at, *num_free);
      ListGone(word, gone, gone_at, *num_gone);
      free_before += free_here;
      gone_before += gone_here;
    }
  }

  // The sum of the blocks before this one; *total: of all.
  __device__ int64_t BeforeBlock(const int64_t* of_blocks, int64_t* total) const {
    int64_t before = 0, all = 0, before_block;
    for (int64_t b = threadIdx.x; b < p_.num_blocks; b += kPlaceThreads) {
      const int64_t count = __ldcg(&of_blocks[b]);
      all += count;
      if (b < blockIdx.x) before += count;
    }
    BlockScan(before, &before_block);
    BlockScan(all, total);
    return before_block;
  }

  __device__ void ListFree(int64_t word, uint32_t bits, int64_t at, int64_t num_free) const {
    for (; bits != 0; bits &= bits - 1, ++at) {
      if (at < num_free) table_.free_rows[num_free - 1 - at] = word * kRowsOfWord + __ffs(bits) - 1;
    }
  }
  __device__ void ListGone(int64_t word, uint32_t bits, int64_t at, int64_t num_gone) const {
    for (; bits != 0; bits &= bits - 1, ++at) {
      if (num_gone - at > p_.evicted_size) continue;  // keys that went later are in its place
      const int64_t number = p_.state->num_evicted + at;
      p_.evicted[number % p_.evicted_size] = table_.KeyOfRow(word * kRowsOfWord + __ffs(bits) - 1);
    }
  }

  // The new keys with the lowest hashes get no row.
  __device__ void LeaveOut(int64_t count) {
    const auto hash_at = [&](int64_t position, bool is_new) {
      if (!is_new) return uint64_t{0};
      const LocateTask& task = TaskAt(args_, position);
      return IndexRef::HashOf(task.keys[position - task.first_position]);
    };
    const NarrowRange range = narrowing_.Find(count, [&](const auto& use) {
      ForPositions([&](int64_t position, bool is_new) { use(hash_at(position, is_new), is_new); });
    });
    ForPositions([&](int64_t position, bool is_new) {
      if (is_new && range.Takes(hash_at(position, is_new))) args_.gets_row[position] = 0;
    });
  }

  const LocateArgs& args_;
  const PlacesArgs& p_;
  const DeviceTableRef& table_;
  TableState& state_;
  cooperative_groups::grid_group grid_;
  Narrowing narrowing_;
  int64_t next_row_ = 0;
};

__global__ void __launch_bounds__(kPlaceThreads, 2)
    MakePlacesKernel(LocateArgs args, PlacesArgs places) {
  PlaceMaker(args, places).Run();
}

}  // namespace

int64_t NumPlacesBlocks() {
  int device = 0, num_processors = 0, of_processor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_processor, MakePlacesKernel, kPlaceThreads, 0);
  return std::max(1, num_processors * of_processor);
}

cudaError_t MakePlaces(const LocateArgs& args, PlacesArgs places, cudaStream_t stream) {
  const cudaError_t failed = cudaMemsetAsync(&places.state->num_new, 0, sizeof(uint64_t), stream);
  if (failed != cudaSuccess) return failed;
  LocateArgs located = args;
  void* arguments[] = {&located, &places};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&MakePlacesKernel),
                                     dim3(static_cast<unsigned>(places.num_blocks)),
                                     dim3(kPlaceThreads), arguments, 0, stream);
}

}  // namespace group_embedding
