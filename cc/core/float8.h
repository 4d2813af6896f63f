// Eight floats, computed with at once, and the functions that small formulas need on these as on
// one float, so that a formula is written once. On the device there is the one float alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

GROUP_EMBEDDING_HOST_DEVICE float SquareRoot(float x) { return sqrtf(x); }
GROUP_EMBEDDING_HOST_DEVICE float Power(float x, float exponent) { return powf(x, exponent); }
GROUP_EMBEDDING_HOST_DEVICE float Magnitude(float x) { return fabsf(x); }
// condition ? x : y, column by column.
GROUP_EMBEDDING_HOST_DEVICE float Select(bool condition, float x, float y) {
  return condition ? x : y;
}
// The larger of two, NaN where either is NaN.
GROUP_EMBEDDING_HOST_DEVICE float Larger(float x, float y) { return x > y || x != x ? x : y; }

#ifndef __CUDACC__
// The compiler keeps several of these in registers, which it does not always do for loops over
// arrays.
using Float8 = float __attribute__((vector_size(32)));
using Mask8 = decltype(Float8{} < Float8{});
using Bits8 = uint32_t __attribute__((vector_size(32)));

template <typename V>
inline Bits8 BitsOf(V x) {
  return reinterpret_cast<Bits8>(x);
}
inline Float8 FloatsOf(Bits8 bits) { return reinterpret_cast<Float8>(bits); }

inline Float8 SquareRoot(Float8 x) {
  for (int j = 0; j < 8; ++j) x[j] = sqrtf(x[j]);
  return x;
}
inline Float8 Power(Float8 x, float exponent) {
  for (int j = 0; j < 8; ++j) x[j] = powf(x[j], exponent);
  return x;
}
inline Float8 Power(float x, Float8 exponent) {
  for (int j = 0; j < 8; ++j) exponent[j] = powf(x, exponent[j]);
  return exponent;
}
inline Float8 Magnitude(Float8 x) { return x < 0 ? -x : x; }
inline Float8 Select(Mask8 condition, Float8 x, Float8 y) { return condition ? x : y; }
inline Float8 Larger(Float8 x, Float8 y) { return (x > y) | (x != x) ? x : y; }
#endif

}  // namespace group_embedding
