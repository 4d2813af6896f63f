// RowFormat: how the rows of a served table are stored.
//
//   format      bytes of a row   value j
//   float32     4 dim            x_j
//   float16     2 dim            x_j
//   bfloat16    2 dim            x_j
//   int8        dim + 4          offset + scale * q_j, q_j in 0..255
//   fp8         dim + 4          scale * q_j, q_j an OCP E4M3 number
//
// int8 and fp8 rows begin with their values; behind these int8 has scale and offset, two bfloat16,
// and fp8 its scale, a float32. Int8 covers [min, max] of a row: offset is at most min, and scale
// at least (max - offset) / 255, both rounded outwards to bfloat16.
#pragma once

#include <cstdint>

#include "core/group.h"
#include "core/words.h"

namespace group_embedding {

enum class RowFormat : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kInt8 = 3, kFp8 = 4 };

inline const Words<RowFormat>& RowFormatWords() {
  static const Words<RowFormat> words = {{"float32", RowFormat::kFloat32},
                                         {"float16", RowFormat::kFloat16},
                                         {"bfloat16", RowFormat::kBFloat16},
                                         {"int8", RowFormat::kInt8},
                                         {"fp8", RowFormat::kFp8}};
  return words;
}

// The format that keeps every bit of a trained row.
inline RowFormat FormatOf(DataType dtype) { return static_cast<RowFormat>(dtype); }

inline bool IsQuantized(RowFormat format) {
  return format == RowFormat::kInt8 || format == RowFormat::kFp8;
}

inline int64_t RowBytes(RowFormat format, int64_t dim) {
  if (format == RowFormat::kFloat32) return 4 * dim;
  return IsQuantized(format) ? dim + 4 : 2 * dim;
}

// Converts one row of `dim` values of `dtype` to `format`.
void EncodeRow(DataType dtype, const void* values, int64_t dim, RowFormat format, char* row);
// Converts a row to float32.
void DecodeRow(RowFormat format, const char* row, int64_t dim, float* values);

}  // namespace group_embedding
