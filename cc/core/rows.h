// Arithmetic on rows of a table on the host: sums in float32, whatever the element type.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/float16.h"
#include "core/group.h"

namespace group_embedding {

// Calls `body` with a null pointer of the element type of `dtype`.
template <typename Body>
void ForDataType(DataType dtype, Body&& body) {
  switch (dtype) {
    case DataType::kFloat32:
      return body(static_cast<float*>(nullptr));
    case DataType::kFloat16:
      return body(static_cast<Float16*>(nullptr));
    case DataType::kBFloat16:
      return body(static_cast<BFloat16*>(nullptr));
  }
}

// out[j] = row[j] for `kWidth` columns, kWidth a multiple of 8.
template <int kWidth, typename T>
inline void LoadColumns(const T* row, float* out) {
  for (int j = 0; j < kWidth; ++j) out[j] = ToFloat(row[j]);
}

#ifdef __F16C__
template <int kWidth>
inline void LoadColumns(const Float16* row, float* out) {  // GCC does not vectorise _cvtsh_ss
  for (int j = 0; j < kWidth; j += 8) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + j));
    _mm256_storeu_ps(out + j, _mm256_cvtph_ps(packed));
  }
}
#endif

// sum[j] += sum_i weights[i] * rows[i][column + j] for `kWidth` columns, which stay in registers.
template <int kWidth, typename T>
inline void AddColumns(const T* const* rows, const float* weights, int64_t count, int64_t column,
                       float* sum) {
  float total[kWidth], values[kWidth];
  for (int j = 0; j < kWidth; ++j) total[j] = sum[j];
  for (int64_t i = 0; i < count; ++i) {
    LoadColumns<kWidth>(rows[i] + column, values);
    const float weight = weights[i];
    for (int j = 0; j < kWidth; ++j) total[j] += weight * values[j];
  }
  for (int j = 0; j < kWidth; ++j) sum[j] = total[j];
}

// sum += sum_i weights[i] * rows[i]; sum: [dim], rows: [count] pointers to [dim]. Each column is
// added in the order of i.
template <typename T>
void AddRows(const T* const* rows, const float* weights, int64_t count, int64_t dim, float* sum) {
  int64_t column = 0;
  for (; column + 64 <= dim; column += 64) {
    AddColumns<64>(rows, weights, count, column, sum + column);
  }
  if (column + 32 <= dim) {
    AddColumns<32>(rows, weights, count, column, sum + column);
    column += 32;
  }
  if (column + 16 <= dim) {
    AddColumns<16>(rows, weights, count, column, sum + column);
    column += 16;
  }
  if (column + 8 <= dim) {
    AddColumns<8>(rows, weights, count, column, sum + column);
    column += 8;
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = column; j < dim; ++j) sum[j] += weights[i] * ToFloat(rows[i][j]);
  }
}

// Four partial sums, always of the same columns, so that the compiler may vectorise.
template <typename A, typename B>
float Dot(const A* a, const B* b, int64_t dim) {
  float sums[4] = {0, 0, 0, 0};
  int64_t j = 0;
  for (; j + 4 <= dim; j += 4) {
    for (int k = 0; k < 4; ++k) sums[k] += ToFloat(a[j + k]) * ToFloat(b[j + k]);
  }
  for (; j < dim; ++j) sums[0] += ToFloat(a[j]) * ToFloat(b[j]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// What a row is multiplied by so that its L2 norm is at most max_norm (tf.clip_by_norm).
template <typename T>
float ClipScale(const T* row, int64_t dim, float max_norm) {
  const float norm = std::sqrt(Dot(row, row, dim));
  return norm > max_norm ? max_norm / norm : 1.0f;
}

// Turns the gradient of the clipped row into that of the row itself: with n = |row| >= max_norm,
//   y = c/n row,  dy/drow^T g = c/n (g - row (row . g) / n^2)
template <typename T>
void ClipGradient(const T* row, int64_t dim, float max_norm, float* gradient) {
  const float squared = Dot(row, row, dim);
  const float norm = std::sqrt(squared);
  if (!(norm >= max_norm)) return;
  const float along = Dot(row, gradient, dim) / squared;
  for (int64_t j = 0; j < dim; ++j) {
    gradient[j] = max_norm / norm * (gradient[j] - along * ToFloat(row[j]));
  }
}

template <typename T>
inline void PrefetchRow(const T* row, int64_t dim) {
  // Four lines; the hardware's own prefetcher sees longer rows coming.
  const char* address = reinterpret_cast<const char*>(row);
  const int64_t bytes = dim * static_cast<int64_t>(sizeof(T));
  for (int64_t at = 0; at < bytes && at < 256; at += 64) __builtin_prefetch(address + at);
}

}  // namespace group_embedding
