#include <algorithm>
#include <vector>

#include "fused/group_lookup.cuh"
#include "fused/host_rows.h"

namespace group_embedding {
namespace {

// A thread's vector of a row of float32, or of as many elements of 16 bits, as the lowest bit of
// its address says. What is not loaded is all zeros, so that neither is chosen by a branch.
template <typename Narrow, int kBytes>
struct WideOrNarrow {
  static constexpr int kSize = kBytes / sizeof(float);

  Vector<float, kBytes> wide;
  Vector<Narrow, kBytes / 2> narrow;

  __device__ float operator[](int i) const {
    return __uint_as_float(__float_as_uint(wide[i]) | __float_as_uint(narrow[i]));
  }
  __device__ static WideOrNarrow LoadIf(bool condition, const char* place) {
    const auto address = reinterpret_cast<uintptr_t>(place);
    const bool is_narrow = address & kNarrowRowBit;
    const auto* from = reinterpret_cast<const char*>(address & ~uintptr_t{kNarrowRowBit});
    return {decltype(wide)::LoadIf(condition && !is_narrow, from),
            decltype(narrow)::LoadIf(condition && is_narrow, from)};
  }
};

// Rows by address, some of them in the type Narrow.
template <typename Wide, typename Narrow>
struct WideOrNarrowRows {
  using Vector = WideOrNarrow<Narrow, static_cast<int>(sizeof(Wide))>;

  __device__ WideOrNarrowRows(const LookupTask&, uint32_t column)
      : column_at(column * sizeof(Wide)) {}
  __device__ const char* At(int64_t id) const {
    return reinterpret_cast<const char*>(id + (id & kNarrowRowBit ? column_at / 2 : column_at));
  }

  uint32_t column_at;
};
template <typename Wide, typename Narrow>
struct ReadAs {
  using Type = WideOrNarrowRows<Wide, Narrow>;
};
template <typename Wide>
struct ReadAs<Wide, void> {
  using Type = WholeRows<Wide>;
};

template <typename T, Weighting weighting, typename Narrow = void>
__global__ void __launch_bounds__(kLookupThreads, BlocksPerMultiprocessor(weighting))
    GroupLookupKernel(LookupArgs args) {
  const int64_t feature = FindOwner(args.first_blocks, args.num_features, blockIdx.x);
  const LookupTask task = args.tasks[feature];
  const uint32_t block = blockIdx.x - static_cast<uint32_t>(args.first_blocks[feature]);
  ForVector<T>(task.shape.vector_bytes, [&](auto vector) {
    using Vector = decltype(vector);
    LookUpBlock<Vector, typename ReadAs<Vector, Narrow>::Type, weighting>(args, task, feature,
                                                                          block);
  });
}

template <typename T>
auto KernelFor(const Group& group, std::optional<DataType> narrow) {
  if constexpr (std::is_same_v<T, float>) {
    constexpr Weighting kNone = Weighting::kNone;
    if (narrow == DataType::kFloat16) return GroupLookupKernel<T, kNone, __half>;
    if (narrow == DataType::kBFloat16) return GroupLookupKernel<T, kNone, __nv_bfloat16>;
  }
  const bool clips = std::any_of(group.tables, group.tables + group.num_tables,
                                 [](const Table& table) { return table.max_norm > 0; });
  return clips                            ? GroupLookupKernel<T, Weighting::kClipping>
         : group.batch.weights == nullptr ? GroupLookupKernel<T, Weighting::kNone>
                                          : GroupLookupKernel<T, Weighting::kWeights>;
}

cudaError_t LaunchLookup(const Group& group, void* scratch, Fault* fault, cudaStream_t stream,
                         std::optional<DataType> narrow) {
  return LaunchLookupKernel(group, FormatOf(group.dtype), scratch, fault, stream, [&](auto* type) {
    return KernelFor<std::remove_pointer_t<decltype(type)>>(group, narrow);
  });
}

}  // namespace

int64_t GroupLookupScratchBytes(const Group& group) {
  return LookupLaunchBytes(group.num_features) +
         (FetchesHostRows(group) ? FetchHostRowsScratchBytes(group) : 0);
}

cudaError_t GroupLookupCuda(const Group& group, void* scratch, Fault* fault, cudaStream_t stream,
                            std::optional<DataType> narrow) {
  if (narrow || !FetchesHostRows(group)) {
    return LaunchLookup(group, scratch, fault, stream, narrow);
  }
  char* fetched = static_cast<char*>(scratch) + LookupLaunchBytes(group.num_features);
  std::vector<Table> tables;
  Group by_address;
  const cudaError_t error = FetchHostRowsCuda(group, fetched, fault, &tables, &by_address, stream);
  if (error != cudaSuccess) return error;
  return LaunchLookup(by_address, scratch, /*fault=*/nullptr, stream, std::nullopt);
}

}  // namespace group_embedding
