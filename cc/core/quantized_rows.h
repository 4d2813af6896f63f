// The values of int8 and fp8 rows (row_format.h), on the host.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "core/float16.h"
#include "core/float8.h"
#include "core/float8_e4m3.h"

namespace group_embedding {

// Views of quantised rows: the value of a column, in float32.
struct Int8Row {
  Int8Row() = default;
  Int8Row(const char* row, int64_t dim) : q(reinterpret_cast<const uint8_t*>(row)) {
    BFloat16 numbers[2];
    std::memcpy(numbers, row + dim, sizeof(numbers));
    scale = ToFloat(numbers[0]);
    offset = ToFloat(numbers[1]);
  }
  float operator[](int64_t j) const { return offset + scale * static_cast<float>(q[j]); }

  const uint8_t* q;
  float scale, offset;
};

inline Float8 Load8(const Int8Row& row, int64_t column) {
  Float8 q;
#ifdef __AVX2__
  const auto* bytes = reinterpret_cast<const __m128i*>(row.q + column);
  q = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes)));
#else
  for (int j = 0; j < 8; ++j) q[j] = row.q[column + j];
#endif
  return row.offset + row.scale * q;
}

struct Fp8Row {
  Fp8Row() = default;
  Fp8Row(const char* row, int64_t dim) : q(reinterpret_cast<const uint8_t*>(row)) {
    std::memcpy(&scale, row + dim, sizeof(scale));
  }
  float operator[](int64_t j) const { return scale * kE4M3Values.of[q[j]]; }

  const uint8_t* q;
  float scale;
};

inline Float8 Load8(const Fp8Row& row, int64_t column) {
  Float8 values;
  for (int j = 0; j < 8; ++j) values[j] = kE4M3Values.of[row.q[column + j]];
  return row.scale * values;
}

}  // namespace group_embedding
