// Arithmetic on rows on the device: a team of threads holds a row, each thread a vector of it.
//
// A team is a power of two of neighbouring lanes of one warp. A row is cut into vectors of 16, 8, 4
// or 2 bytes, as wide as its dim and the addresses allow; thread i of a team of n threads has
// vectors i, i + n, i + 2n, ... Sums are float32, whatever the element type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/descriptors.cuh"
#include "core/group.h"

namespace group_embedding {

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <int kBytes>
struct WordOf;
template <>
struct WordOf<16> {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<4> {
  using Type = unsigned int;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};

// Loads `from`, or returns zeros. It has no branch, so that many loads are in flight together.
__device__ inline uint4 LoadIf(bool condition, const uint4* from) {
  uint4 word;
  asm("{.reg .pred p; setp.ne.s32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0;"
      " mov.u32 %3, 0; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "=&r"(word.x), "=&r"(word.y), "=&r"(word.z), "=&r"(word.w)
      : "l"(from), "r"(static_cast<int>(condition)));
  return word;
}
__device__ inline uint2 LoadIf(bool condition, const uint2* from) {
  uint2 word;
  asm("{.reg .pred p; setp.ne.s32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
      " @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
      : "=&r"(word.x), "=&r"(word.y)
      : "l"(from), "r"(static_cast<int>(condition)));
  return word;
}
__device__ inline unsigned int LoadIf(bool condition, const unsigned int* from) {
  unsigned int word;
  asm("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.u32 %0, 0;"
      " @p ld.global.nc.u32 %0, [%1];}"
      : "=&r"(word)
      : "l"(from), "r"(static_cast<int>(condition)));
  return word;
}
__device__ inline unsigned short LoadIf(bool condition, const unsigned short* from) {
  unsigned short word;
  asm("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.u16 %0, 0;"
      " @p ld.global.nc.u16 %0, [%1];}"
      : "=&h"(word)
      : "l"(from), "r"(static_cast<int>(condition)));
  return word;
}

// A pointer that nothing writes while the kernel runs: stores do not make the compiler read it
// again and wait, as they do for one that they might have written.
template <typename T>
__device__ T* LoadPointer(T* const* from) {
  return reinterpret_cast<T*>(__ldg(reinterpret_cast<const unsigned long long*>(from)));
}

// Elements of a row that one thread moves in one instruction.
template <typename T, int kBytes>
struct Vector {
  using Element = T;
  using Word = typename WordOf<kBytes>::Type;
  static constexpr int kSize = kBytes / sizeof(T);

  Word word;

  __device__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, __nv_bfloat16> && kBytes >= 4) {
      // Straight from the pair: the elements one by one would take a register each.
      const unsigned pair = reinterpret_cast<const unsigned*>(&word)[i / 2];
      return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
    }
    return ToFloat(reinterpret_cast<const T*>(&word)[i]);
  }

  // `from` must not be written while the kernel runs.
  __device__ static Vector Load(const void* from) {
    return {__ldg(static_cast<const Word*>(from))};
  }
  __device__ static Vector LoadIf(bool condition, const void* from) {
    return {group_embedding::LoadIf(condition, static_cast<const Word*>(from))};
  }
  __device__ static Vector Zeros() { return {Word{}}; }

  __device__ static Vector Round(const float (&values)[kSize]) {
    Vector vector;
    for (int i = 0; i < kSize; ++i) {
      reinterpret_cast<T*>(&vector.word)[i] = FromFloat<T>(values[i]);
    }
    return vector;
  }
  // Written once and not read again by the kernel: it need not stay in the cache.
  __device__ void Stream(void* to) const { __stcs(static_cast<Word*>(to), word); }
};

// Writes them, rounded, in words of at most 16 bytes: to an address that is aligned so.
template <typename T, int kCount>
__device__ void StoreVector(const float (&values)[kCount], T* to) {
  constexpr int kPiece = kCount * sizeof(T) > 16 ? 16 / sizeof(T) : kCount;
#pragma unroll
  for (int first = 0; first < kCount; first += kPiece) {
    float piece[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) piece[i] = values[first + i];
    Vector<T, kPiece* static_cast<int>(sizeof(T))>::Round(piece).Stream(to + first);
  }
}

// The shape of a team, chosen on the host.
struct RowShape {
  int32_t vector_bytes;
  int32_t num_vectors;  // of a row
  int32_t team_bits;    // a team has 2 to the power of these threads, at most 32
  int32_t num_columns;  // vectors of a thread: num_vectors / team_size(), rounded up

  int32_t team_size() const { return 1 << team_bits; }

  // `alignment`: the addresses and strides that the rows are reached by, all or-ed together.
  static RowShape Of(int64_t dim, DataType dtype, int64_t alignment) {
    const int64_t row_bytes = dim * SizeOf(dtype);
    const int64_t bits = row_bytes | alignment | 16;
    RowShape shape;
    shape.vector_bytes = static_cast<int32_t>(bits & -bits);
    shape.num_vectors = static_cast<int32_t>(row_bytes / shape.vector_bytes);
    shape.team_bits = 0;
    while (shape.team_size() < kWarpSize && shape.team_size() < shape.num_vectors) {
      ++shape.team_bits;
    }
    shape.num_columns = (shape.num_vectors + shape.team_size() - 1) / shape.team_size();
    return shape;
  }
};

inline int64_t Alignment(const void* pointer) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer) & 15);
}

// A thread's position: the index of its team in the block, and its lane in the team.
struct Team {
  int32_t size;
  int32_t index;
  int32_t lane;
  unsigned mask;  // the lanes of the warp that are this team

  __device__ explicit Team(int32_t team_bits)
      : size(1 << team_bits),
        index(threadIdx.x >> team_bits),
        lane(threadIdx.x & (size - 1)),
        mask((kFullWarp >> (kWarpSize - size)) << (threadIdx.x & (kWarpSize - size))) {}

  // Adds `value` over the team. Every lane gets the same bits, on every run.
  __device__ float Sum(float value) const {
    for (int offset = size / 2; offset > 0; offset /= 2) {
      value += __shfl_xor_sync(mask, value, offset);
    }
    return value;
  }
};

// Calls `body(Vector<T, bytes>{})`.
template <typename T, typename Body>
__device__ __forceinline__ void ForVector(int32_t vector_bytes, Body&& body) {
  switch (vector_bytes) {
    case 16:
      return body(Vector<T, 16>{});
    case 8:
      return body(Vector<T, 8>{});
    case 4:
      return body(Vector<T, 4>{});
    case 2:
      if constexpr (sizeof(T) == 2) body(Vector<T, 2>{});
  }
}

// Host: calls `body` with a null pointer of the device's element type.
template <typename Body>
auto ForDeviceType(DataType dtype, Body&& body) {
  switch (dtype) {
    case DataType::kFloat16:
      return body(static_cast<__half*>(nullptr));
    case DataType::kBFloat16:
      return body(static_cast<__nv_bfloat16*>(nullptr));
    default:
      return body(static_cast<float*>(nullptr));
  }
}

// What a row is multiplied by so that its norm is at most max_norm (tf.clip_by_norm).
__device__ inline float ClipScale(float sum_squares, float max_norm) {
  const float norm = sqrtf(sum_squares);
  return norm <= max_norm ? 1.0f : max_norm / norm;
}

// The gradient g of a clipped row is scale * (g - along * row) for the row itself.
struct ClipGradient {
  float scale = 1;
  float along = 0;

  // dot: row . g
  __device__ static ClipGradient Of(float sum_squares, float dot, float max_norm) {
    const float norm = sqrtf(sum_squares);
    if (norm < max_norm) return {};
    return {max_norm / norm, dot / sum_squares};
  }
};

}  // namespace group_embedding
