// The 16-bit element types on the host. CUDA code uses the toolkit's own __half and __nv_bfloat16,
// which have the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace group_embedding {

inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t BitsFromFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

inline float ToFloat(float value) { return value; }

inline float ToFloat(BFloat16 value) { return FloatFromBits(uint32_t{value.bits} << 16); }

inline float ToFloat(Float16 value) {
#ifdef __F16C__
  return _cvtsh_ss(value.bits);
#else
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return FloatFromBits(sign | 0x7F800000u | (magnitude << 13));
  // The exponent's bias goes from 15 to 127 by a multiplication, which also normalises subnormals.
  return FloatFromBits(sign | BitsFromFloat(FloatFromBits(magnitude << 13) * 0x1p112f));
#endif
}

// Rounds to nearest, ties to even.
template <typename T>
T FromFloat(float value);

template <>
inline float FromFloat<float>(float value) {
  return value;
}

template <>
inline BFloat16 FromFloat<BFloat16>(float value) {
  const uint32_t bits = BitsFromFloat(value);
  if (value != value) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
inline Float16 FromFloat<Float16>(float value) {
#ifdef __F16C__
  return {static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))};
#else
  const uint32_t bits = BitsFromFloat(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u)};
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};  // >= 65520
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves value * 2^24, rounded, below it
    const float shifted = FloatFromBits(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (BitsFromFloat(shifted) - BitsFromFloat(0.5f)))};
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
#endif
}

}  // namespace group_embedding
