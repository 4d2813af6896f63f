#include "optimizer/overflow.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

namespace group_embedding {
namespace {

constexpr int64_t kNumbersAtOnce = 16384;  // after which a thread looks whether it is known

// Whether one is infinite or NaN. No branch within, so that compilers take many at a time.
template <typename Bits>
bool HasOverflow(const void* values, int64_t begin, int64_t end, Bits exponent) {
  const Bits* bits = static_cast<const Bits*>(values);
  unsigned found = 0;
  for (int64_t i = begin; i < end; ++i) found |= (bits[i] & exponent) == exponent;
  return found != 0;
}

bool HasOverflow(const Numbers& numbers, int64_t begin, int64_t end) {
  const uint32_t exponent = ExponentBits(numbers.dtype);
  if (numbers.dtype == DataType::kFloat32) {
    return HasOverflow<uint32_t>(numbers.values, begin, end, exponent);
  }
  return HasOverflow<uint16_t>(numbers.values, begin, end, static_cast<uint16_t>(exponent));
}

}  // namespace

float OverflowCpu(const Numbers* arrays, int64_t num_arrays, const ParallelFor& parallel_for) {
  std::vector<int64_t> first_piece = {0};
  for (int64_t a = 0; a < num_arrays; ++a) {
    const int64_t pieces = (arrays[a].count + kNumbersAtOnce - 1) / kNumbersAtOnce;
    first_piece.push_back(first_piece.back() + pieces);
  }
  std::atomic<bool> found{false};
  parallel_for(first_piece.back(), kNumbersAtOnce / 8, [&](int64_t begin, int64_t end) {
    const auto after = std::upper_bound(first_piece.begin(), first_piece.end(), begin);
    int64_t a = after - first_piece.begin() - 1;
    for (int64_t piece = begin; piece < end && !found; ++piece) {
      while (piece >= first_piece[a + 1]) ++a;
      const int64_t first = (piece - first_piece[a]) * kNumbersAtOnce;
      const int64_t last = std::min(first + kNumbersAtOnce, arrays[a].count);
      if (HasOverflow(arrays[a], first, last)) found = true;
    }
  });
  return found ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
}

}  // namespace group_embedding
