// The exchange of two rows of a table: their values, slots, RowInfo, and numbers in the index.
#pragma once

#include "table/device/find_one.cuh"
#include "table/device/row_copies.cuh"

namespace group_embedding {

// Whether a key has the row, and no call since `held_since` has located it.
__device__ inline bool MayMove(const DeviceTableRef& table, int64_t row, int64_t held_since) {
  return table.infos[row].count >= 0 && table.moves.ClockOf(row) < held_since;
}

template <typename Word>
__device__ inline void ExchangeWords(char* a, char* b, int32_t bytes, int lane) {
  for (int32_t at = lane * sizeof(Word); at < bytes; at += kWarpSize * sizeof(Word)) {
    const Word of_a = __ldcg(reinterpret_cast<const Word*>(a + at));
    const Word of_b = __ldcg(reinterpret_cast<const Word*>(b + at));
    *reinterpret_cast<Word*>(a + at) = of_b;
    *reinterpret_cast<Word*>(b + at) = of_a;
  }
}

// A warp exchanges the contents of rows `a` and `b` of an array.
__device__ inline void ExchangeRows(void* array, int64_t a, int64_t b, int32_t bytes, int lane) {
  char *of_a = static_cast<char*>(array) + a * bytes, *of_b = static_cast<char*>(array) + b * bytes;
  const auto places = reinterpret_cast<uintptr_t>(array) | bytes;
  if (places % sizeof(uint4) == 0) {
    ExchangeWords<uint4>(of_a, of_b, bytes, lane);
  } else if (places % sizeof(uint32_t) == 0) {
    ExchangeWords<uint32_t>(of_a, of_b, bytes, lane);
  } else {
    ExchangeWords<uint16_t>(of_a, of_b, bytes, lane);
  }
}

// Lane 0 has one of the two rows, lane 1 the other. A warp calls it together.
__device__ inline void Exchange(const DeviceTableRef& table, int64_t a, int64_t b, int lane) {
  if (table.copies != nullptr)
    CopyForSnapshot(*table.copies, lane == 0 ? a : lane == 1 ? b : kNoRow);
  uint64_t *slot = nullptr, word = 0;
  if (lane < 2) slot = FindSlot(table, table.KeyOfRow(lane == 0 ? a : b), &word);
  __syncwarp();
  ExchangeRows(table.infos, a, b, sizeof(RowInfo), lane);
  if (lane == 0) table.moves.ExchangeUses(a, b);
  ExchangeRows(table.rows, a, b, table.dim * SizeOf(table.dtype), lane);
  for (int s = 0; s < table.num_slot_arrays; ++s) {
    const SlotArray& array = table.slot_arrays[s];
    ExchangeRows(array.values, a, b, array.width * SizeOf(array.dtype), lane);
  }
  if (lane < 2) __stcg(slot, SlotWord::With(word, SlotKind::kRow, lane == 0 ? b : a));
}

}  // namespace group_embedding
