// The exchange of pairs of rows of a table: their values, slots, RowInfo, and numbers in the index.
#pragma once

#include "table/device/find_one.cuh"
#include "table/device/row_copies.cuh"

namespace group_embedding {

// Whether a key has the row, and no call since `held_since` has located it.
__device__ inline bool MayMove(const DeviceTableRef& table, int64_t row, int64_t held_since) {
  return table.infos[row].count >= 0 && table.moves.ClockOf(row) < held_since;
}

// Up to 16 pairs of rows: lane 2 p has one row of pair p, lane 2 p + 1 the other, or kNoRow both.
// Their slots of the index are looked for by all lanes at once, and the words of several pairs are
// on their way together, so that a few warps keep the bus busy. A snapshot that is being read gets
// the rows first. A warp calls it together.
constexpr int kPairsOfWarp = kWarpSize / 2, kPairsAtOnce = 4;

template <typename Word>
__device__ inline void ExchangeWordsOfPairs(char* rows, int64_t row, int32_t bytes, int lane) {
  const unsigned has_row = __ballot_sync(kFullWarp, row != kNoRow);
  for (int first = 0; first < kPairsOfWarp && has_row >> 2 * first != 0; first += kPairsAtOnce) {
    char *a[kPairsAtOnce], *b[kPairsAtOnce];
    bool is_pair[kPairsAtOnce];
#pragma unroll
    for (int p = 0; p < kPairsAtOnce; ++p) {
      const int64_t row_a = __shfl_sync(kFullWarp, row, 2 * (first + p));
      const int64_t row_b = __shfl_sync(kFullWarp, row, 2 * (first + p) + 1);
      is_pair[p] = row_a != kNoRow;
      a[p] = rows + (is_pair[p] ? row_a : 0) * bytes;  // no branch between the loads: they would
      b[p] = rows + (is_pair[p] ? row_b : 0) * bytes;  // wait for each other
    }
    for (int32_t at = lane * sizeof(Word); at < bytes; at += kWarpSize * sizeof(Word)) {
      Word of_a[kPairsAtOnce], of_b[kPairsAtOnce];
#pragma unroll
      for (int p = 0; p < kPairsAtOnce; ++p) {
        of_a[p] = __ldcg(reinterpret_cast<const Word*>(a[p] + at));
        of_b[p] = __ldcg(reinterpret_cast<const Word*>(b[p] + at));
      }
#pragma unroll
      for (int p = 0; p < kPairsAtOnce; ++p) {
        if (!is_pair[p]) continue;
        *reinterpret_cast<Word*>(a[p] + at) = of_b[p];
        *reinterpret_cast<Word*>(b[p] + at) = of_a[p];
      }
    }
  }
}

__device__ inline void ExchangeArrayOfPairs(void* array, int64_t row, int32_t bytes, int lane) {
  const auto places = reinterpret_cast<uintptr_t>(array) | bytes;
  char* rows = static_cast<char*>(array);
  if (places % sizeof(uint4) == 0) {
    ExchangeWordsOfPairs<uint4>(rows, row, bytes, lane);
  } else if (places % sizeof(uint32_t) == 0) {
    ExchangeWordsOfPairs<uint32_t>(rows, row, bytes, lane);
  } else {
    ExchangeWordsOfPairs<uint16_t>(rows, row, bytes, lane);
  }
}

__device__ inline void ExchangePairs(const DeviceTableRef& table, int64_t row, int lane) {
  if (table.copies != nullptr) CopyForSnapshot(*table.copies, row);
  const int64_t other = __shfl_xor_sync(kFullWarp, row, 1);
  uint64_t *slot = nullptr, word = 0;
  RowInfo info;
  unsigned long long use = 0;
  if (row != kNoRow) {
    slot = FindSlot(table, table.KeyOfRow(row), &word);
    info = table.infos[row];
    use = table.moves.uses[row];
  }
  const unsigned long long note = __shfl_xor_sync(kFullWarp, use, 1) & 1;
  __syncwarp();  // both rows of a pair are read
  if (row != kNoRow) {
    table.infos[other] = info;
    table.moves.uses[other] =
        (use & ~1ULL) | note;  // a note stays with the row's number, which `wanted` has
  }
  ExchangeArrayOfPairs(table.rows, row, table.dim * SizeOf(table.dtype), lane);
  for (int s = 0; s < table.num_slot_arrays; ++s) {
    const SlotArray& array = table.slot_arrays[s];
    ExchangeArrayOfPairs(array.values, row, array.width * SizeOf(array.dtype), lane);
  }
  if (row != kNoRow && lane % 2 == 0) table.moves.ExchangeNext(row, other);
  if (row != kNoRow) __stcg(slot, SlotWord::With(word, SlotKind::kRow, other));
}

}  // namespace group_embedding
