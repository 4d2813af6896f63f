// Stochastic rounding: a float becomes one of its two neighbours in a 16-bit type, the nearer the
// likelier, so that updates smaller than half a unit are not all lost (Gupta et al. 2015).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/float8.h"
#include "core/group.h"
#include "core/host_device.h"

namespace group_embedding {

// What slot k of a rule draws is number k; what the row itself draws is this number.
inline constexpr int kDrawOfRow = 3;

// The random bits of one row, which RowKeys gives, at one step: the same wherever they are
// computed, so that the same step gives the same bits. Two words of state are mixed once for a row;
// what follows for each column takes multiplications of 32 bits, which vector instructions have.
class RowRandom {
 public:
  RowRandom() = default;
  // key: of the step. The mixer is that of SplitMix64 (Steele et al. 2014).
  GROUP_EMBEDDING_HOST_DEVICE RowRandom(uint32_t key, int64_t row) {
    uint64_t x = static_cast<uint64_t>(row) + key * uint64_t{0x9E3779B97F4A7C15};
    x = (x ^ (x >> 30)) * uint64_t{0xBF58476D1CE4E5B9};
    x = (x ^ (x >> 27)) * uint64_t{0x94D049BB133111EB};
    x ^= x >> 31;
    low_ = static_cast<uint32_t>(x);
    high_ = static_cast<uint32_t>(x >> 32);
  }

  // 16 bits for a column. V: uint32_t or, on the host, eight columns as Bits8.
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE V Draw(int draw, V column) const {
    return HalfOf(DrawTwo(draw / 2, column), draw);
  }

  // Draws 2 * pair and 2 * pair + 1 in one number. The mixer is lowbias32 (Wellons, Prospecting for
  // Hash Functions, 2018). The second word enters within it: rows whose counters overlap draw other
  // numbers.
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE V DrawTwo(int pair, V column) const {
    V x = column + (low_ + static_cast<uint32_t>(pair * kMaxDim));
    x = (x ^ (x >> 16)) * 0x7FEB352Du + high_;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
  }
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static V HalfOf(V two, int draw) {
    return draw % 2 == 0 ? two & 0xFFFFu : two >> 16;
  }

 private:
  uint32_t low_ = 0, high_ = 0;
};

// Moves `value` up or down to a float that bfloat16 holds exactly. `random`: 16 bits. Infinities
// and NaN stay.
GROUP_EMBEDDING_HOST_DEVICE float RoundToBFloat16(float value, uint32_t random) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7F800000u) == 0x7F800000u) return value;
  bits = (bits + random) & 0xFFFF0000u;  // carries as often as the bits below ask for
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// As RoundToBFloat16, for float16, whose subnormal numbers are multiples of 2^-24.
GROUP_EMBEDDING_HOST_DEVICE float RoundToFloat16(float value, uint32_t random) {
  if (fabsf(value) < 0x1p-14f) return floorf(value * 0x1p24f + random * 0x1p-16f) * 0x1p-24f;
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7F800000u) == 0x7F800000u) return value;
  bits = (bits + (random >> 3)) & ~0x1FFFu;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace group_embedding
