#include "fused/launch_reduce.cuh"

namespace group_embedding {
namespace {

// Where the gradients of a table go.
struct StoredTable {
  int64_t* indices;
  char* values;
  int64_t dim;
  GradientWire wire;
};

// What sinks that keep gradients have in common.
struct StoreLimits {
  static constexpr int kMaxColumns = 4;
};

// The sink that keeps the gradients, as the values of an IndexedSlices.
template <typename T, TableKind kOfTables>
struct StoreGradient : StoreLimits {
  using Table = StoredTable;
  struct Shared {};
  struct Common {};
  static constexpr TableKind kKind = kOfTables;
  static constexpr int kBlocks = 4;
  static constexpr int64_t kMaxTaken = kPieceEntries + 1;  // all segments of a window
  __device__ static bool IsActive(const Common&) { return true; }
  __device__ static bool NeedsRow(const Common&) { return false; }

  template <typename Vector, bool kAtOnce>
  struct Team {
    const Table& sink;
    const int64_t first_unique;  // of the table

    __device__ Team(const ReduceArgs& a, int32_t table, const Table& store, const Common&,
                    const group_embedding::Team&, Shared&)
        : sink(store), first_unique(a.sorted.num_unique[table]) {}
    __device__ void Start(int64_t, int, int, int32_t, bool) {}
    __device__ void Take(int, int64_t unique, int32_t column, bool has_column,
                         const float (&sum)[Vector::kSize]) {
      if (!has_column) return;
      const int64_t element = (unique - first_unique) * sink.dim + column;
      switch (sink.wire.type) {
        case DataType::kFloat32:
          return Store<float>(sum, element);
        case DataType::kFloat16:
          return Store<__half>(sum, element);
        case DataType::kBFloat16:
          return Store<__nv_bfloat16>(sum, element);
      }
    }
    __device__ void Finish(int, int64_t, int, int32_t, bool) {}
    __device__ void EndSum(int64_t, bool) {}

   private:
    template <typename Wire>
    __device__ void Store(const float (&sum)[Vector::kSize], int64_t element) const {
      Wire* to = reinterpret_cast<Wire*>(sink.values) + element;
      float values[Vector::kSize];
#pragma unroll
      for (int i = 0; i < Vector::kSize; ++i) values[i] = sink.wire.factor * sum[i];
      StoreVector<Wire, Vector::kSize>(values, to);
    }
  };
};

// The indices of the IndexedSlices.
template <typename = void>
__global__ void __launch_bounds__(kReduceThreads)
    StoreIndicesKernel(const __grid_constant__ ReduceArgs args, const StoredTable* sinks) {
  const int64_t* num_unique = args.sorted.num_unique;
  const int64_t step = int64_t{gridDim.x} * kReduceThreads;
  for (int64_t u = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
       u < num_unique[args.num_tables]; u += step) {
    const int64_t table =
        FindOwnerAlone(args.num_tables, u, [&](int64_t t) { return num_unique[t]; });
    int64_t* indices = LoadPointer(&sinks[table].indices);
    if (indices != nullptr) indices[u - num_unique[table]] = args.RowOf(args.tasks[table], u);
  }
}

}  // namespace

int64_t ReduceRowsScratchBytesCuda(const Group& group) {
  return ReduceScratchBytes<StoreGradient<float, kAnyTable>>(group);
}

cudaError_t ReduceRowsCuda(const Group& group, const SortedRows& sorted, const TableGrad* grads,
                           void* scratch, cudaStream_t stream, const ReduceOptions& options) {
  if (group.batch.num_ids == 0) return cudaSuccess;
  std::vector<int64_t> alignments;
  std::vector<StoredTable> stores;
  bool stores_indices = false;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    const GradientWire as_it_is = {group.dtype, 1};
    alignments.push_back(Alignment(grads[t].values));
    stores.push_back({grads[t].indices, static_cast<char*>(grads[t].values), group.tables[t].dim,
                      options.wires == nullptr ? as_it_is : options.wires[t]});
    stores_indices |= grads[t].indices != nullptr;
  }
  ReducePlan plan = PlanReduce(group, alignments, StoreLimits::kMaxColumns);
  if (plan.max_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return ForDeviceType(group.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ReduceLauncher<T> launcher(group, sorted, &plan, stores, scratch, stream, options.num_owners);
    if (stores_indices) {
      launcher.template ForUniqueRows<StoreGradient<T, kAnyTable>>(StoreIndicesKernel<>);
    }
    if (plan.has[kOneWord]) launcher.template Reduce<StoreGradient<T, kOneWord>>({});
    if (plan.has[kFewWords]) launcher.template Reduce<StoreGradient<T, kFewWords>>({});
    if (plan.has[kAnyTable]) launcher.template Reduce<StoreGradient<T, kAnyTable>>({});
    launcher.AddPieces();
    if (plan.HasPlain()) launcher.template TakeLongRows<StoreGradient<T, kFewWords>>({});
    if (plan.has[kAnyTable]) launcher.template TakeLongRows<StoreGradient<T, kAnyTable>>({});
    return launcher.End();
  });
}

}  // namespace group_embedding
