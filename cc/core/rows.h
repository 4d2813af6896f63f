// Arithmetic on rows of a table on the host: sums in float32, whatever the element type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/float16.h"
#include "core/float8.h"
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

inline Float8 Load8(const float* row) {
  Float8 values = {};
  std::memcpy(&values, row, sizeof(values));
  return values;
}

// The bits of eight numbers of a 16-bit type.
using HalfBits8 = uint16_t __attribute__((vector_size(16)));

inline Float8 Load8(const BFloat16* row) {
  HalfBits8 bits;
  std::memcpy(&bits, row, sizeof(bits));
  return FloatsOf(__builtin_convertvector(bits, Bits8) << 16);
}

template <typename T>
inline Float8 Load8(const T* row) {
#ifdef __F16C__
  if constexpr (std::is_same_v<T, Float16>) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
  }
#endif
  Float8 values = {};
  for (int j = 0; j < 8; ++j) values[j] = ToFloat(row[j]);
  return values;
}

template <typename T>
inline Float8 Load8(const T* row, int64_t column) {
  return Load8(row + column);
}

// store(column, sum) for `kVectors` * 8 columns from `column` on, sum_i weights[i] * rows[i] of
// them.
template <int kVectors, bool kWeighted, typename Row, typename Store>
inline void SumColumns(const Row* rows, const float* weights, int64_t count, int64_t column,
                       const Store& store) {
  Float8 total[kVectors] = {};
  for (int64_t i = 0; i < count; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const Float8 values = Load8(rows[i], column + 8 * v);
      total[v] += kWeighted ? weights[i] * values : values;
    }
  }
  for (int v = 0; v < kVectors; ++v) store(column + 8 * v, total[v]);
}

template <bool kWeighted, typename Row, typename Store>
inline void SumRows(const Row* rows, const float* weights, int64_t count, int64_t dim,
                    const Store& store) {
  int64_t column = 0;
  for (; column + 64 <= dim; column += 64) {
    SumColumns<8, kWeighted>(rows, weights, count, column, store);
  }
  if (column + 32 <= dim) {
    SumColumns<4, kWeighted>(rows, weights, count, column, store);
    column += 32;
  }
  if (column + 16 <= dim) {
    SumColumns<2, kWeighted>(rows, weights, count, column, store);
    column += 16;
  }
  if (column + 8 <= dim) {
    SumColumns<1, kWeighted>(rows, weights, count, column, store);
    column += 8;
  }
  for (; column < dim; ++column) {
    float total = 0;
    for (int64_t i = 0; i < count; ++i) {
      total += (kWeighted ? weights[i] : 1.0f) * ToFloat(rows[i][column]);
    }
    store(column, total);
  }
}

// Adds rows column by column in the order of i: sum_i weights[i] * rows[i]. Hands every part of the
// sum, a Float8 or the float of a column at the end, to `store(first column, part)`, once.
// rows: [count] pointers to [dim], or views of quantised rows (core/row_format.h); weights:
// [count], or null: every weight is 1.
template <typename Row, typename Store>
inline void SumRows(const Row* rows, const float* weights, int64_t count, int64_t dim,
                    const Store& store) {
  if (weights == nullptr) {
    SumRows<false>(rows, weights, count, dim, store);
  } else {
    SumRows<true>(rows, weights, count, dim, store);
  }
}

inline void Store8(Float8 values, float* row) { std::memcpy(row, &values, sizeof(values)); }

// The high 16 bits, after `added` went to those of finite values. NaN stays NaN.
inline void StoreHigh8(Float8 values, Bits8 added, BFloat16* row) {
  const Mask8 is_finite = values - values == 0, is_nan = values != values;
  const Bits8 bits = BitsOf(values) + (added & BitsOf(is_finite));
  const Bits8 stored = bits | (BitsOf(is_nan) & 0x400000u);
  const HalfBits8 high = __builtin_convertvector(stored >> 16, HalfBits8);
  std::memcpy(row, &high, sizeof(high));
}
// Rounds as FromFloat does.
inline void Store8(Float8 values, BFloat16* row) {
  StoreHigh8(values, 0x7FFFu + ((BitsOf(values) >> 16) & 1u), row);
}

template <typename T>
inline void Store8(Float8 values, T* row) {
#ifdef __F16C__
  if constexpr (std::is_same_v<T, Float16>) {
    const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(row), halves);
  }
#endif
  for (int j = 0; j < 8; ++j) row[j] = FromFloat<T>(values[j]);
}

// to[j] = scale * from[j], rounded to T.
template <typename T, typename From>
inline void StoreScaled(float scale, const From* from, int64_t dim, T* to) {
  int64_t column = 0;
  for (; column + 8 <= dim; column += 8) Store8(scale * Load8(from + column), to + column);
  for (; column < dim; ++column) to[column] = FromFloat<T>(scale * ToFloat(from[column]));
}

// sums[j] += scale * from[j]
template <typename From>
inline void AddScaled(float scale, const From* from, int64_t dim, float* sums) {
  int64_t column = 0;
  for (; column + 8 <= dim; column += 8) {
    Store8(Load8(sums + column) + scale * Load8(from + column), sums + column);
  }
  for (; column < dim; ++column) sums[column] += scale * ToFloat(from[column]);
}

// Four partial sums, always of the same columns, so that the compiler may vectorise.
template <typename A, typename B>
float Dot(A a, B b, int64_t dim) {
  float sums[4] = {0, 0, 0, 0};
  int64_t j = 0;
  for (; j + 4 <= dim; j += 4) {
    for (int k = 0; k < 4; ++k) sums[k] += ToFloat(a[j + k]) * ToFloat(b[j + k]);
  }
  for (; j < dim; ++j) sums[0] += ToFloat(a[j]) * ToFloat(b[j]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// What a row is multiplied by so that its L2 norm is at most max_norm (tf.clip_by_norm). NaN where
// the norm is NaN: such a row becomes NaN as a whole.
template <typename Row>
float ClipScale(Row row, int64_t dim, float max_norm) {
  const float norm = std::sqrt(Dot(row, row, dim));
  return norm <= max_norm ? 1.0f : max_norm / norm;
}

// Turns the gradient of the clipped row into that of the row itself: with n = |row| >= max_norm,
//   y = c/n row,  dy/drow^T g = c/n (g - row (row . g) / n^2)
template <typename T>
void ClipGradient(const T* row, int64_t dim, float max_norm, float* gradient) {
  const float squared = Dot(row, row, dim);
  const float norm = std::sqrt(squared);
  if (norm < max_norm) return;
  const float along = Dot(row, gradient, dim) / squared;
  for (int64_t j = 0; j < dim; ++j) {
    gradient[j] = max_norm / norm * (gradient[j] - along * ToFloat(row[j]));
  }
}

// Into the second-level cache: a lookup was a third slower where the first level was asked for.
template <typename T>
inline void PrefetchRow(const T* row, int64_t dim) {
  // Every line that the row touches, up to four; the hardware's own prefetcher sees longer rows
  // coming.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(row) & ~uintptr_t{63};
  const uintptr_t end = reinterpret_cast<uintptr_t>(row + dim);
  for (uintptr_t line = begin; line < end && line < begin + 256; line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
  }
}

// Fetches rows of an array that are used soon, some at a time, in ascending order. Where few lie
// between those, they are fetched as well: memory read without gaps comes faster than the same rows
// with gaps. Each row's share is as large as the next one's, for a count of lines that changes from
// row to row, which no processor foresees, costs more than the lines. Rows with gaps come into the
// second-level cache: memory is slow to find them, and the first waits for few lines at a time.
class RowStream {
 public:
  RowStream() = default;
  // A null array has nothing to fetch.
  RowStream(const void* rows, int64_t row_bytes)
      : rows_(static_cast<const char*>(rows)), row_bytes_(row_bytes) {}

  // Calls of `Fetch` for `count` rows from `first` to `last` follow.
  void Aim(int64_t first, int64_t last, int64_t count) {
    if (rows_ == nullptr) return;
    const char* begin = std::max(next_, rows_ + first * row_bytes_);
    const int64_t span = rows_ + (last + 1) * row_bytes_ - begin;
    has_gaps_ = span > count * (row_bytes_ + kMaxGapBytes);
    lines_per_row_ = has_gaps_ ? LinesOfARow() : Lines(span, count);
    next_ = begin;
  }

  void Fetch(int64_t row) {
    if (rows_ == nullptr) return;
    if (has_gaps_) {
      const char* line = rows_ + row * row_bytes_;
      for (int64_t l = 0; l < lines_per_row_; ++l) __builtin_prefetch(line + 64 * l, 0, 2);
      next_ = line + 64 * lines_per_row_;
    } else {
      for (int64_t l = 0; l < lines_per_row_; ++l, next_ += 64) __builtin_prefetch(next_, 0, 3);
    }
  }

 private:
  static constexpr int64_t kMaxGapBytes = 128;

  static int64_t Lines(int64_t bytes, int64_t shares) {
    return (bytes + 64 * shares - 1) / (64 * shares);
  }
  // That any row touches, wherever it begins.
  int64_t LinesOfARow() const {
    const bool fill_lines = (reinterpret_cast<uintptr_t>(rows_) | row_bytes_) % 64 == 0;
    return Lines(row_bytes_ + (fill_lines ? 0 : 63), 1);
  }

  const char* rows_ = nullptr;
  const char* next_ = nullptr;  // not fetched yet
  int64_t row_bytes_ = 0;
  int64_t lines_per_row_ = 0;
  bool has_gaps_ = false;
};

}  // namespace group_embedding
