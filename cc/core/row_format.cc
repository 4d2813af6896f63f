#include "core/row_format.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "core/quantized_rows.h"
#include "core/rows.h"

namespace group_embedding {
namespace {

// The bfloat16 below or equal to `value`, and that above or equal to it.
BFloat16 RoundDown(float value) {
  BFloat16 rounded = {static_cast<uint16_t>(BitsFromFloat(value) >> 16)};  // towards zero
  if (ToFloat(rounded) > value) ++rounded.bits;                            // negative: away from it
  return rounded;
}

BFloat16 RoundUp(float value) {
  BFloat16 rounded = {static_cast<uint16_t>(BitsFromFloat(value) >> 16)};
  if (ToFloat(rounded) < value) ++rounded.bits;
  return rounded;
}

// A value that is not a number, or infinite, makes the row's scale that: the row decodes to NaN,
// and is noticed as it would be in float32.
void EncodeInt8(const float* values, int64_t dim, char* row) {
  float least = values[0], most = values[0];
  bool finite = true;
  for (int64_t j = 0; j < dim; ++j) {
    least = std::min(least, values[j]);
    most = std::max(most, values[j]);
    finite &= std::isfinite(values[j]);
  }
  const BFloat16 offset = RoundDown(finite ? least : 0.0f);
  finite &= std::isfinite(ToFloat(offset));
  const BFloat16 scale =
      finite ? RoundUp(most / 255.0f - ToFloat(offset) / 255.0f) : FromFloat<BFloat16>(NAN);
  const float step = ToFloat(scale), base = ToFloat(offset);
  for (int64_t j = 0; j < dim; ++j) {
    const float q = step > 0 ? std::nearbyint((values[j] - base) / step) : 0.0f;
    row[j] = static_cast<char>(static_cast<uint8_t>(std::min(255.0f, std::max(0.0f, q))));
  }
  std::memcpy(row + dim, &scale, 2);
  std::memcpy(row + dim + 2, &offset, 2);
}

void EncodeFp8(const float* values, int64_t dim, char* row) {
  float most = 0;
  bool finite = true;
  for (int64_t j = 0; j < dim; ++j) {
    most = std::max(most, std::fabs(values[j]));
    finite &= std::isfinite(values[j]);
  }
  const float scale = finite ? most / kMostE4M3 : NAN;
  for (int64_t j = 0; j < dim; ++j) {
    row[j] = static_cast<char>(E4M3FromFloat(scale > 0 ? values[j] / scale : 0.0f));
  }
  std::memcpy(row + dim, &scale, 4);
}

template <typename To, typename From>
void Convert(const From* from, int64_t dim, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, dim * sizeof(To));
  } else {
    for (int64_t j = 0; j < dim; ++j) to[j] = FromFloat<To>(ToFloat(from[j]));
  }
}

template <typename From>
void Encode(const From* values, int64_t dim, RowFormat format, char* row) {
  switch (format) {
    case RowFormat::kFloat32:
      return Convert(values, dim, reinterpret_cast<float*>(row));
    case RowFormat::kFloat16:
      return Convert(values, dim, reinterpret_cast<Float16*>(row));
    case RowFormat::kBFloat16:
      return Convert(values, dim, reinterpret_cast<BFloat16*>(row));
    case RowFormat::kInt8:
    case RowFormat::kFp8:
      break;
  }
  std::vector<float> floats(dim);
  Convert(values, dim, floats.data());
  if (format == RowFormat::kInt8) return EncodeInt8(floats.data(), dim, row);
  EncodeFp8(floats.data(), dim, row);
}

}  // namespace

void EncodeRow(DataType dtype, const void* values, int64_t dim, RowFormat format, char* row) {
  ForDataType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Encode(static_cast<const T*>(values), dim, format, row);
  });
}

void DecodeRow(RowFormat format, const char* row, int64_t dim, float* values) {
  if (format == RowFormat::kInt8) {
    const Int8Row of_row(row, dim);
    for (int64_t j = 0; j < dim; ++j) values[j] = of_row[j];
  } else if (format == RowFormat::kFp8) {
    const Fp8Row of_row(row, dim);
    for (int64_t j = 0; j < dim; ++j) values[j] = of_row[j];
  } else {
    ForDataType(static_cast<DataType>(format), [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      Convert(reinterpret_cast<const T*>(row), dim, values);
    });
  }
}

}  // namespace group_embedding
