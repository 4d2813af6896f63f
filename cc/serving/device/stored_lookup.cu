#include <cuda_fp8.h>

#include <algorithm>
#include <vector>

#include "fused/group_lookup.cuh"
#include "serving/device/stored_lookup.h"

namespace group_embedding {
namespace {

// Loads a byte, or returns zero, without a branch.
__device__ inline unsigned short LoadByteIf(bool condition, const unsigned char* from) {
  unsigned short byte;
  asm("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.u16 %0, 0;"
      " @p ld.global.nc.u8 %0, [%1];}"
      : "=&h"(byte)
      : "l"(from), "r"(static_cast<int>(condition)));
  return byte;
}

// kSize bytes of a row, at an address that is aligned to 4 bytes, or to kSize where that is less.
template <int kSize>
struct Bytes {
  unsigned words[kSize > 4 ? kSize / 4 : 1];

  __device__ unsigned operator[](int i) const { return words[i / 4] >> i % 4 * 8 & 0xFF; }
  // The byte, put into the bits of 2^23, is exact: conversions have a quarter of the speed.
  __device__ float ByteAsFloat(int i) const {
    constexpr unsigned kTwoTo23 = 0x4B000000;
    return __uint_as_float(__byte_perm(words[i / 4], kTwoTo23, 0x7440 | i % 4)) - 0x1p23f;
  }
  __device__ static Bytes LoadIf(bool condition, const char* from) {
    Bytes bytes;
    if constexpr (kSize == 1) {
      const auto* at = reinterpret_cast<const unsigned char*>(from);
      bytes.words[0] = LoadByteIf(condition, at);
    } else if constexpr (kSize == 2) {
      const auto* at = reinterpret_cast<const unsigned short*>(from);
      bytes.words[0] = group_embedding::LoadIf(condition, at);
    } else {
#pragma unroll
      for (int w = 0; w < kSize / 4; ++w) {
        const auto* at = reinterpret_cast<const unsigned*>(from) + w;
        bytes.words[w] = group_embedding::LoadIf(condition, at);
      }
    }
    return bytes;
  }
};

// The four bytes behind the values of a row, aligned as the values are.
template <int kSize>
__device__ unsigned LoadNumbersIf(bool condition, const char* from) {
  constexpr int kAtOnce = kSize < 4 ? kSize : 4;
  unsigned numbers = 0;
#pragma unroll
  for (int at = 0; at < 4; at += kAtOnce) {
    numbers |= Bytes<kAtOnce>::LoadIf(condition, from + at).words[0] << at * 8;
  }
  return numbers;
}

// Where a thread's values of a quantised row are, and the row's numbers.
struct QuantizedPlace {
  const char* values;
  const char* numbers;
};

// A thread's values of an int8 or fp8 row (row_format.h). What is not loaded is zeros.
template <RowFormat format, int kBytes>
struct QuantizedVector {
  static constexpr int kSize = kBytes;

  Bytes<kSize> q;
  unsigned numbers;

  __device__ float operator[](int i) const {
    if constexpr (format == RowFormat::kInt8) {
      const float scale = __uint_as_float(numbers << 16);
      const float offset = __uint_as_float(numbers & 0xFFFF0000u);
      return fmaf(scale, q.ByteAsFloat(i), offset);
    } else {
      // Two at once, as the instruction does.
      const unsigned pair = q.words[i / 4] >> i % 4 / 2 * 16 & 0xFFFF;
      const __half2_raw halves =
          __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
      const __half_raw half = {i % 2 == 0 ? halves.x : halves.y};
      return __uint_as_float(numbers) * __half2float(__half(half));
    }
  }
  __device__ static QuantizedVector LoadIf(bool condition, const QuantizedPlace& place) {
    return {Bytes<kSize>::LoadIf(condition, place.values),
            LoadNumbersIf<kSize>(condition, place.numbers)};
  }
};

// How a thread reads stored rows, by row number or by address: `kSize` values of each.
template <RowFormat format, int kSize_>
struct StoredRows {
  static constexpr int kSize = kSize_;
  using Vector = QuantizedVector<format, kSize>;

  __device__ StoredRows(const LookupTask& task, uint32_t column)
      : values(task.rows + column * kSize),
        numbers_at((task.shape.num_vectors - column) * kSize),
        row_bytes(task.row_bytes) {}
  __device__ QuantizedPlace At(int64_t id) const {
    const char* row = values + id * row_bytes;
    return {row, row + numbers_at};
  }

  const char* values;   // the thread's, of the table's first row
  uint32_t numbers_at;  // from there to the row's numbers
  uint32_t row_bytes;
};
template <int kSize_>
struct StoredRows<RowFormat::kBFloat16, kSize_> {
  static constexpr int kSize = kSize_;
  using Vector = group_embedding::Vector<__nv_bfloat16, 2 * kSize>;

  __device__ StoredRows(const LookupTask& task, uint32_t column)
      : values(task.rows + column * 2 * kSize), row_bytes(task.row_bytes) {}
  __device__ const char* At(int64_t id) const { return values + id * row_bytes; }

  const char* values;
  uint32_t row_bytes;
};

// Threads of outputs in 16 bits have eight values of a row, which take more registers.
template <typename T>
constexpr int StoredBlocksPerMultiprocessor(Weighting weighting) {
  return sizeof(T) == 2 ? 2 : BlocksPerMultiprocessor(weighting);
}

template <typename T, Weighting weighting, RowFormat format>
__global__ void __launch_bounds__(kLookupThreads, StoredBlocksPerMultiprocessor<T>(weighting))
    StoredLookupKernel(LookupArgs args) {
  const int64_t feature = FindOwner(args.first_blocks, args.num_features, blockIdx.x);
  const LookupTask task = args.tasks[feature];
  const uint32_t block = blockIdx.x - static_cast<uint32_t>(args.first_blocks[feature]);
  ForVector<T>(task.shape.vector_bytes, [&](auto vector) {
    using Vector = decltype(vector);
    LookUpBlock<Vector, StoredRows<format, Vector::kSize>, weighting>(args, task, feature, block);
  });
}

template <typename T, RowFormat format>
auto KernelFor(const Group& group) {
  const bool clips = std::any_of(group.tables, group.tables + group.num_tables,
                                 [](const Table& table) { return table.max_norm > 0; });
  return clips                            ? StoredLookupKernel<T, Weighting::kClipping, format>
         : group.batch.weights == nullptr ? StoredLookupKernel<T, Weighting::kNone, format>
                                          : StoredLookupKernel<T, Weighting::kWeights, format>;
}

cudaError_t LaunchStored(const Group& group, RowFormat format, void* scratch, cudaStream_t stream) {
  return LaunchLookupKernel(group, format, scratch, /*fault=*/nullptr, stream, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    return format == RowFormat::kInt8  ? KernelFor<T, RowFormat::kInt8>(group)
           : format == RowFormat::kFp8 ? KernelFor<T, RowFormat::kFp8>(group)
                                       : KernelFor<T, RowFormat::kBFloat16>(group);
  });
}

}  // namespace

int64_t StoredLookupScratchBytes(const Group& group) {
  // Each feature is in one launch; each launch rounds up.
  const int64_t num_formats = static_cast<int64_t>(RowFormatWords().size());
  return LookupLaunchBytes(group.num_features) + num_formats * LookupLaunchBytes(1);
}

cudaError_t StoredLookupCuda(const Group& group, const RowFormat* formats, void* scratch,
                             cudaStream_t stream) {
  const RowFormat trained = FormatOf(group.dtype);
  for (const auto& [word, format] : RowFormatWords()) {
    std::vector<Feature> features;
    for (int64_t f = 0; f < group.num_features; ++f) {
      if (formats[group.features[f].table] == format) features.push_back(group.features[f]);
    }
    if (features.empty()) continue;
    Group same = group;
    same.features = features.data();
    same.num_features = static_cast<int64_t>(features.size());
    const cudaError_t error = format == trained
                                  ? GroupLookupCuda(same, scratch, /*fault=*/nullptr, stream)
                                  : LaunchStored(same, format, scratch, stream);
    if (error != cudaSuccess) return error;
    scratch = static_cast<char*>(scratch) + LookupLaunchBytes(same.num_features);
  }
  return cudaSuccess;
}

}  // namespace group_embedding
