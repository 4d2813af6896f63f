// What the kernels of plain tables know of a rule's slots at compile time.
#pragma once

#include <algorithm>

#include "optimizer/apply_rule.cuh"

namespace group_embedding {

// Slots are float32. A rule has slots per column, or one per row, which is then its only one.
template <typename T, typename Rule>
struct PlainSlots {
  static constexpr bool kHasRowSlot = Rule::kRowSlot == 0;
  static_assert(kHasRowSlot ? Rule::kNumSlots == 1 : Rule::kRowSlot == kNoRowSlot);
  static constexpr int kSlots = kHasRowSlot ? 0 : Rule::kNumSlots;  // per column
  // A third slot, which few rules have, is read from the table when it is needed.
  static constexpr int kLoadedSlots = std::min(kSlots, 2);
  static constexpr int kSlotWords = sizeof(float) / sizeof(T);  // for a word of the row
};

// Rounds columns from `column` on, of a row that is drawn by a number of RowKeys, to neighbours in
// the type T, at random.
template <typename T, typename Column, int kSize>
__device__ inline void RoundColumns(const Hyper& hyper, int64_t drawn_by, Column column,
                                    float (&values)[kSize]) {
  const RowRandom random(__float_as_uint(hyper.rounding_key), drawn_by);
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const uint32_t drawn = random.Draw(kDrawOfRow, static_cast<uint32_t>(column + j));
    values[j] = RoundToNeighbour(T{}, values[j], drawn);
  }
}

}  // namespace group_embedding
