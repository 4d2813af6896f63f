// The initial values of a key's row. They depend on the key alone, not on the time, the rank or the
// batch in which the key is first seen, and are the same bits on the host and on the device.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

enum class Distribution : int32_t {
  kMatrix = 0,           // row `key mod matrix_rows` of a matrix that was drawn once
  kConstant = 1,         // a
  kUniform = 2,          // in [a, b)
  kNormal = 3,           // of mean a and standard deviation b
  kTruncatedNormal = 4,  // the same, within two standard deviations
};

struct InitialValues {
  Distribution distribution = Distribution::kConstant;
  float a = 0, b = 0;
  uint64_t seed = 0;
  int64_t matrix_rows = 0;  // >= 1 for kMatrix, else 0
};

// The finalizer of MurmurHash3: every bit of the result depends on every bit of `x`.
GROUP_EMBEDDING_HOST_DEVICE uint64_t MixBits(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x;
}

// Which row of the matrix a key starts as; keys are taken as unsigned.
GROUP_EMBEDDING_HOST_DEVICE int64_t MatrixRow(int64_t key, int64_t matrix_rows) {
  return static_cast<int64_t>(static_cast<uint64_t>(key) % static_cast<uint64_t>(matrix_rows));
}

namespace initial_values {

// ln(x), for x > 0 and normal, to 1e-15: written out, since the libraries of host and device differ
// in the last bits. With x = 2^k m and 1/sqrt(2) <= m < sqrt(2), ln(m) = 2 artanh((m-1)/(m+1)).
GROUP_EMBEDDING_HOST_DEVICE double Log(double x) {
  int k = 0;
  while (x >= 1.4142135623730951) x *= 0.5, ++k;
  while (x < 0.7071067811865476) x *= 2, --k;
  const double t = (x - 1) / (x + 1), t2 = t * t;
  double sum = 0, power = t;
  for (int i = 1; i < 30; i += 2) {
    sum = sum + power / i;
    power = power * t2;
  }
  return k * 0.6931471805599453 + 2 * sum;
}

GROUP_EMBEDDING_HOST_DEVICE double Root(double x) {
  double y = x > 1 ? x : 1;  // Newton's method from above; only for a few x in (0, 2000)
  for (int i = 0; i < 40; ++i) y = 0.5 * (y + x / y);
  return y;
}

// The quantile of the standard normal distribution, to 1.2e-9: P. J. Acklam, "An algorithm for
// computing the inverse normal cumulative distribution function" (2003).
GROUP_EMBEDDING_HOST_DEVICE double NormalQuantile(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                          6.680131188771972e+01, -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                          3.754408661907416e+00};
  constexpr double kTail = 0.02425;
  if (p >= kTail && p <= 1 - kTail) {
    const double q = p - 0.5, r = q * q;
    return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
           (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
  }
  const double q = Root(-2 * Log(p < 0.5 ? p : 1 - p));
  const double x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
                   ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  return p < 0.5 ? x : -x;
}

}  // namespace initial_values

// Column `column` of the row that `key` starts as. Not for kMatrix.
GROUP_EMBEDDING_HOST_DEVICE float InitialValue(const InitialValues& initial, int64_t key,
                                               int64_t column) {
  if (initial.distribution == Distribution::kConstant) return initial.a;
  const uint64_t bits =
      MixBits(MixBits(static_cast<uint64_t>(key) ^ MixBits(initial.seed + 0x9e3779b97f4a7c15ULL)) +
              static_cast<uint64_t>(column) * 0xd1b54a32d192ed03ULL);
  const double u = (static_cast<double>(bits >> 12) + 0.5) / 4503599627370496.0;  // in (0, 1)
  if (initial.distribution == Distribution::kUniform) {
    const float value =
        static_cast<float>(initial.a + (static_cast<double>(initial.b) - initial.a) * u);
    return value < initial.b || initial.b <= initial.a ? value : initial.a;  // rounded up to b
  }
  constexpr double kBelowTwo = 0.022750131948179195;  // the share of a normal distribution below -2
  const double p =
      initial.distribution == Distribution::kNormal ? u : kBelowTwo + (1 - 2 * kBelowTwo) * u;
  return static_cast<float>(initial.a + initial.b * initial_values::NormalQuantile(p));
}

}  // namespace group_embedding
