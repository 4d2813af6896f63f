#include <algorithm>
#include <type_traits>

#include "core/rows.cuh"
#include "exchange/gpu/convert_parts.h"
#include "exchange/gpu/part_bytes.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // elements: 16 bytes of the narrow types
static_assert(kPartAlignment / 4 % kEach == 0);

template <typename T>
struct alignas(16) Elements {
  T of[kEach];
};

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    ConvertPartsKernel(const Elements<From>* from, int64_t count, float factor, Elements<To>* to) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const Elements<From> read = from[i];
    Elements<To> written;
#pragma unroll
    for (int e = 0; e < kEach; ++e) written.of[e] = FromFloat<To>(factor * ToFloat(read.of[e]));
    to[i] = written;
  }
}

}  // namespace

cudaError_t ConvertPartsCuda(const void* from, DataType from_type, int64_t from_bytes, float factor,
                             void* to, DataType to_type, cudaStream_t stream) {
  const int64_t count = from_bytes / SizeOf(from_type) / kEach;
  if (count == 0) return cudaSuccess;
  const int64_t num_blocks = std::min((count + kThreads - 1) / kThreads, 8 * NumMultiprocessors());
  return ForDeviceType(from_type, [&](auto* read) {
    return ForDeviceType(to_type, [&](auto* written) {
      using From = std::remove_pointer_t<decltype(read)>;
      using To = std::remove_pointer_t<decltype(written)>;
      ConvertPartsKernel<From, To><<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(
          static_cast<const Elements<From>*>(from), count, factor, static_cast<Elements<To>*>(to));
      return cudaGetLastError();
    });
  });
}

}  // namespace group_embedding
