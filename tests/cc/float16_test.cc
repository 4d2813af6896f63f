#include "core/float16.h"

#include <cmath>
#include <limits>

#include "check.h"

namespace group_embedding {
namespace {

TEST(Float16RoundTripsEveryFiniteValue) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const Float16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(ToFloat(value))) continue;
    CHECK_EQ(FromFloat<Float16>(ToFloat(value)).bits, value.bits);
  }
}

TEST(BFloat16RoundTripsEveryFiniteValue) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(ToFloat(value))) continue;
    CHECK_EQ(FromFloat<BFloat16>(ToFloat(value)).bits, value.bits);
  }
}

TEST(Float16RoundsTiesToEven) {
  CHECK_EQ(ToFloat(FromFloat<Float16>(2049.0f)), 2048.0f);
  CHECK_EQ(ToFloat(FromFloat<Float16>(2051.0f)), 2052.0f);
  CHECK_EQ(ToFloat(FromFloat<Float16>(65519.0f)), 65504.0f);
  CHECK_TRUE(std::isinf(ToFloat(FromFloat<Float16>(65520.0f))));
}

TEST(NotANumberStaysNotANumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_TRUE(std::isnan(ToFloat(FromFloat<Float16>(nan))));
  CHECK_TRUE(std::isnan(ToFloat(FromFloat<BFloat16>(nan))));
}

}  // namespace
}  // namespace group_embedding
