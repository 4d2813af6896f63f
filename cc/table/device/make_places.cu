#include <algorithm>

#include "table/device/budget_shares.cuh"
#include "table/device/locate_rows.cuh"
#include "table/device/make_places.h"
#include "table/device/order_of_row.cuh"
#include "table/device/places_state.cuh"
#include "table/device/row_copies.cuh"

namespace group_embedding {
namespace {

constexpr int kRowsOfWord = 32;
constexpr int64_t kSampledWords = 4096;  // from which on one in so many groups is sampled:
constexpr int64_t kSampleEach = 32;
constexpr int64_t kAlwaysFree = 0;  // the clock of a free row that no batch can hold

// Whether a kernel with fewer registers does: one share, by step or count, nothing else.
bool IsPlain(const PlacesArgs& places) {
  const bool by_info =
      places.first == EvictFirst::kLeastRecent || places.first == EvictFirst::kLeastFrequent;
  return places.shares.count == 1 && by_info && places.safe_steps == 0 &&
         places.evicted_counts == nullptr && !places.lends;
}

// A launch for one table. All threads call all methods together.
template <bool kIsPlain>
class PlaceMaker {
 public:
  __device__ PlaceMaker(const LocateArgs& args, const PlacesArgs& places)
      : args_(args),
        p_(places),
        table_(args.tables[places.table]),
        order_(table_, places, args.step),
        state_(*table_.state),
        grid_(cooperative_groups::this_grid()),
        narrowing_(&places.state->narrow) {}

  __device__ void Run() {
    next_row_ = __ldcg(&state_.next_row);
    CountNew();
    if (has_shares() && __ldcg(&p_.state->are_counted) == 0) CountKeys();
    const int64_t num_free = __ldcg(&state_.num_free);
    const int64_t num_unused = table_.usable_rows - next_row_;
    int64_t num_new = 0;
    bool is_over = false;
    for (int64_t s = 0; s < num_shares(); ++s) {
      num_new += NewOf(s);
      is_over = is_over || KeysOf(s) + NewOf(s) > p_.shares.limits[s].max_keys;
    }
    if (is_over || num_new > num_free + num_unused) {
      MakePlaces(num_unused);
    } else if (has_shares()) {
      grid_.sync();  // nobody reads the shares any more
      if (Thread() < num_shares()) p_.keys_of_share[Thread()] += NewOf(Thread());
      if (Thread() == 0) p_.state->are_counted = 1;
    }
  }

 private:
  using Order = DeviceOrderOfRow<kIsPlain>;

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

  __device__ int64_t num_shares() const { return kIsPlain ? 1 : p_.shares.count; }
  __device__ bool has_shares() const { return num_shares() > 1; }
  // The table's number of the share of a key.
  __device__ int64_t ShareOf(int64_t key) const {
    return kIsPlain ? 0 : group_embedding::ShareOf(p_.shares, key);
  }
  __device__ int64_t NewOf(int64_t share) const {
    return static_cast<int64_t>(__ldcg(&p_.new_of_share[share]));
  }
  __device__ int64_t GoneOf(int64_t share) const {
    return static_cast<int64_t>(__ldcg(&p_.gone_of_share[share]));
  }
  __device__ int64_t KeysOf(int64_t share) const {
    return has_shares() ? __ldcg(&p_.keys_of_share[share]) : __ldcg(&state_.num_keys);
  }

  __device__ void CountNew() const {
    if (has_shares()) {
      ForPositions([&](int64_t position, bool is_new) {
        AddToShare(p_.new_of_share, is_new ? ShareOf(KeyAt(position)) : kAnyShare, is_new);
      });
    } else {
      int64_t mine = 0;
      ForPositions([&](int64_t, bool is_new) { mine += is_new; });
      AddOfBlock(mine, p_.new_of_share);
    }
    grid_.sync();
  }

  // Adds the sum over the threads of the block.
  __device__ static void AddOfBlock(int64_t mine, unsigned long long* to) {
    int64_t of_block;
    BlockScan(mine, &of_block);
    if (threadIdx.x == 0 && of_block != 0) atomicAdd(to, static_cast<unsigned long long>(of_block));
  }

  // Keys of shares, after something else than a call like this has changed them.
  __device__ void CountKeys() const {
    if (Thread() < num_shares()) __stcg(&p_.keys_of_share[Thread()], int64_t{0});
    grid_.sync();
    auto* counts = reinterpret_cast<unsigned long long*>(p_.keys_of_share);
    ForRows(true, 1, [&](int64_t, int64_t row, bool is_one) {
      const RowInfo info = is_one ? InfoOf(row) : RowInfo{0, -1, -1, 0};
      AddToShare(counts, info.count >= 0 ? ShareOf(info.key) : kAnyShare, info.count >= 0);
    });
    grid_.sync();
  }

  __device__ void MakePlaces(int64_t num_unused) {
    for (int64_t s = 0; s < num_shares(); ++s) EvictOfShare(s);
    if (!knows_free_) Evict({0, 0, 0, false}, Order::kHash, true, kAnyShare);  // nothing
    int64_t num_free, num_gone;
    ListRows(&num_free, &num_gone);
    // Each share's new keys, and last those of all: where other batches hold rows, these may be
    // short.
    int64_t num_given = 0, more = 0, num_without = 0;
    for (int64_t s = 0; s <= num_shares(); ++s) {
      const bool is_last = s == num_shares();
      const int64_t given = is_last ? 0 : GivenTo(s);
      num_given += given;
      more = is_last ? max(num_given - (num_free + num_unused), int64_t{0}) : NewOf(s) - given;
      num_without += more;
      if (more > 0) LeaveOut(more, is_last ? kAnyShare : s);
    }
    grid_.sync();
    p_.state->narrow.Clear(Thread(), NumThreads());
    if (has_shares() && Thread() < num_shares()) AddToKeys(Thread());
    if (Thread() != 0) return;
    p_.state->are_counted = more == 0;  // else shares are counted anew
    state_.num_keys -= num_gone;
    state_.num_free = num_free;
    p_.state->num_evicted += num_gone;
    p_.state->num_without_place += num_without;
  }

  // How many of its new keys a share has places for, once keys have gone.
  __device__ int64_t GivenTo(int64_t share) const {
    const int64_t left = KeysOf(share) - GoneOf(share);
    return min(NewOf(share), max(p_.shares.limits[share].max_keys - left, int64_t{0}));
  }

  __device__ void AddToKeys(int64_t share) const {
    p_.keys_of_share[share] = KeysOf(share) - GoneOf(share) + GivenTo(share);
  }

  __device__ void EvictOfShare(int64_t share) {
    const ShareLimit& limit = p_.shares.limits[share];
    const int64_t num_keys = KeysOf(share), num_new = NewOf(share);
    if (num_keys + num_new <= limit.max_keys) return;
    // As Budget::NumKept says.
    const int64_t beside_new = max(limit.max_keys - num_new, int64_t{0});
    EvictLowest(max(num_keys - min(limit.low_keys, beside_new), int64_t{0}), share);
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
  __device__ bool MayGo(int64_t row, const RowInfo& info, int64_t share) const {
    if (info.count < 0 || info.clock >= p_.held_from) return false;
    if (has_shares() && ShareOf(info.key) != share) return false;
    return !order_.IsSafeNow(row);
  }

  __device__ void EvictLowest(int64_t num_to_go, int64_t share) {
    bool all = true;  // rows are looked at, as none is known to be tied
    int which = p_.first == EvictFirst::kLeastRecent ? Order::kVersion : Order::kScore;
    for (int64_t left = num_to_go; left > 0; ++which, all = false) {
      const auto numbers = [&](int64_t each, const auto& use) {
        ForRows(all, each, [&](int64_t, int64_t row, bool is_one) {
          const RowInfo info = is_one ? InfoOf(row) : RowInfo{0, -1, -1, 0};
          const bool may_go = MayGo(row, info, share);
          use(may_go ? order_.NumberOf(row, info, which) : 0, may_go);
        });
      };
      NumberRange likely;  // of hashes: all
      if (which < Order::kHash) {
        const int64_t each = NumWords() < kSampledWords ? 1 : kSampleEach;
        likely = narrowing_.RangeOf([&](const auto& use) { numbers(each, use); });
      }
      const auto all_numbers = [&](const auto& use) { numbers(1, use); };
      const NarrowRange range = narrowing_.Find(left, all_numbers, likely);
      Evict(range, which, all, share);
      left = range.takes_all ? 0 : range.left;
    }
  }

  // Evicts those keys of the share that the range takes; those in it are tied. The first time that
  // it looks at all rows it finds those that are free.
  __device__ void Evict(const NarrowRange& range, int which, bool all, int64_t share) {
    const int lane = threadIdx.x % kWarpSize;
    const bool is_first = !knows_free_;
    knows_free_ = true;
    int64_t num_emptied = 0, num_gone = 0;
    ForRows(all, 1, [&](int64_t word, int64_t row, bool is_one) {
      const RowInfo info = is_one ? InfoOf(row) : RowInfo{0, -1, -1, INT64_MAX};
      const bool may_go = share != kAnyShare && MayGo(row, info, share);
      const uint64_t number = may_go ? order_.NumberOf(row, info, which) : 0;
      const bool goes = may_go && range.Takes(number);
      const bool is_tied = may_go && !goes && range.Has(number);
      const bool is_free = is_one && info.count < 0 && info.clock < ReuseFrom(info);
      if (table_.copies != nullptr) {
        CopyForSnapshot(*table_.copies, goes ? row : kNoRow);
        __syncwarp();  // all lanes copy each row
      }
      if (goes) num_emptied += TakeOut(row, info);
      num_gone += goes;
      const unsigned ties = __ballot_sync(kFullWarp, is_tied);
      const unsigned gone = __ballot_sync(kFullWarp, goes);
      const unsigned free = __ballot_sync(kFullWarp, is_free || (goes && IsFreeAtOnce()));
      if (lane != 0) return;
      __stcg(&p_.tied[word], ties);
      __stcg(&p_.gone[word], is_first ? gone : __ldcg(&p_.gone[word]) | gone);
      __stcg(&p_.free[word], is_first ? free : __ldcg(&p_.free[word]) | free);
    });
    __syncwarp();  // the lanes of the warp read its ties
    AddOfBlock(-num_emptied, reinterpret_cast<unsigned long long*>(&state_.used_slots));
    if (share != kAnyShare) AddOfBlock(num_gone, &p_.gone_of_share[share]);
  }

  // A row without a key is free if it lost its key, or was lent, before that call. The call's own
  // batch may hold rows that were lent to it before.
  __device__ int64_t ReuseFrom(const RowInfo& info) const {
    return !kIsPlain && info.count == kLentCount ? p_.held_from : p_.reuse_from;
  }
  __device__ bool IsFreeAtOnce() const { return table_.clock < p_.reuse_from; }

  // Returns whether the index has a slot in use less. The count of a key that goes is kept,
  // negative.
  __device__ bool TakeOut(int64_t row, const RowInfo& info) const {
    const int64_t clock = IsFreeAtOnce() ? kAlwaysFree : table_.clock;
    auto* halves = reinterpret_cast<longlong2*>(&table_.infos[row]);
    __stcg(halves, longlong2{info.key, ~info.count});
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
      KeepGone(word * kRowsOfWord + __ffs(bits) - 1,
               (p_.state->num_evicted + at) % p_.evicted_size);
    }
  }

  __device__ void KeepGone(int64_t row, int64_t place) const {
    const RowInfo info = InfoOf(row);
    p_.evicted[place] = info.key;
    if (kIsPlain || p_.evicted_counts == nullptr) return;
    p_.evicted_counts[place] = ~info.count;
    p_.evicted_versions[place] = info.version;
    if (p_.evicted_rows == nullptr) return;
    const auto bytes = static_cast<int32_t>(table_.dim * SizeOf(table_.dtype));
    const char* from = table_.Row(row);
    char* to = p_.evicted_rows + place * bytes;
    for (int32_t i = 0; i < bytes; i += 2) {  // of any type
      *reinterpret_cast<uint16_t*>(to + i) = *reinterpret_cast<const uint16_t*>(from + i);
    }
  }

  __device__ int64_t KeyAt(int64_t position) const {
    const LocateTask& task = TaskAt(args_, position);
    return task.keys[position - task.first_position];
  }

  // The new keys with the lowest hashes, of a share or of all, get no row.
  __device__ void LeaveOut(int64_t count, int64_t share) {
    const auto for_each = [&](const auto& use) {
      ForPositions([&](int64_t position, bool is_new) {
        const int64_t key = is_new ? KeyAt(position) : 0;
        const bool is_of_share = share == kAnyShare || ShareOf(key) == share;
        use(position, IndexRef::HashOf(key), is_new && is_of_share);
      });
    };
    const NarrowRange range = narrowing_.Find(count, [&](const auto& use) {
      for_each([&](int64_t, uint64_t hash, bool is_one) { use(hash, is_one); });
    });
    for_each([&](int64_t position, uint64_t hash, bool is_one) {
      if (is_one && range.Takes(hash)) __stcg(&args_.gets_row[position], 0);
    });
  }

  const LocateArgs& args_;
  const PlacesArgs& p_;
  const DeviceTableRef& table_;
  const Order order_;
  TableState& state_;
  cooperative_groups::grid_group grid_;
  Narrowing narrowing_;
  int64_t next_row_ = 0;
  bool knows_free_ = false;  // the bits of free rows and of those that lost their keys are there
};

template <bool kIsPlain>
__global__ void __launch_bounds__(kPlaceThreads, 2)
    MakePlacesKernel(LocateArgs args, PlacesArgs places) {
  PlaceMaker<kIsPlain>(args, places).Run();
}

}  // namespace

int64_t NumPlacesBlocks() {
  int device = 0, num_processors = 0, of_processor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_processor, MakePlacesKernel<false>,
                                                kPlaceThreads, 0);
  return std::max(1, num_processors * of_processor);
}

cudaError_t MakePlaces(const LocateArgs& args, PlacesArgs places, cudaStream_t stream) {
  // Those that went are behind the new ones.
  const cudaError_t failed =
      cudaMemsetAsync(places.new_of_share, 0, 2 * places.shares.count * sizeof(uint64_t), stream);
  if (failed != cudaSuccess) return failed;
  LocateArgs located = args;
  void* arguments[] = {&located, &places};
  const auto kernel = IsPlain(places) ? &MakePlacesKernel<true> : &MakePlacesKernel<false>;
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel),
                                     dim3(static_cast<unsigned>(places.num_blocks)),
                                     dim3(kPlaceThreads), arguments, 0, stream);
}

}  // namespace group_embedding
