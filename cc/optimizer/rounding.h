// Stochastic rounding: a float becomes one of its two neighbours in a 16-bit type, the nearer the
// likelier, so that updates smaller than half a unit are not all lost (Gupta et al. 2015).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace group_embedding {

// 16 random bits for one column of one row, which RowKeys gives, at one step: the same wherever it
// is computed, so that the same step gives the same bits. The mixer is that of SplitMix64 (Steele
// et al. 2014).
GROUP_EMBEDDING_HOST_DEVICE uint32_t RandomBits(uint32_t key, int64_t row, int64_t column) {
  uint64_t x = (static_cast<uint64_t>(row) << 13) + static_cast<uint64_t>(column) +
               key * uint64_t{0x9E3779B97F4A7C15};
  x = (x ^ (x >> 30)) * uint64_t{0xBF58476D1CE4E5B9};
  x = (x ^ (x >> 27)) * uint64_t{0x94D049BB133111EB};
  return static_cast<uint32_t>(x >> 48);
}

// The key of the random numbers of a row's slot k, apart from the row's own and from other slots'.
// The mixer is that of MurmurHash3.
GROUP_EMBEDDING_HOST_DEVICE uint32_t KeyOfSlot(uint32_t key, int k) {
  uint32_t x = key + 0x9E3779B9u * static_cast<uint32_t>(k + 1);
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

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
