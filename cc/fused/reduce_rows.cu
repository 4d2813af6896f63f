#include "fused/launch_reduce.cuh"

namespace group_embedding {
namespace {

// The sink that keeps the gradients, as the indices and values of an IndexedSlices.
template <typename T>
struct StoreGradient {
  struct Table {
    int64_t* indices;
    char* values;
    int64_t dim;
    GradientWire wire;
  };
  struct Shared {};
  struct Common {};
  static constexpr bool kTakesRow = true;
  static constexpr TableKind kKind = kAnyTable;
  static constexpr int kBlocks = 4;
  static constexpr int64_t kMaxTaken = kEntriesPerTeam;
  __device__ static bool IsActive(const Common&) { return true; }
  __device__ static bool NeedsRow(const Common&) { return false; }

  template <typename Vector, bool kAtOnce>
  struct Team {
    static_assert(!kAtOnce);
    const Table sink;
    const int64_t first_unique;  // of the table

    __device__ Team(const ReduceArgs& a, int32_t table, const Table& store, const Common&,
                    const group_embedding::Team&, Shared&)
        : sink(store), first_unique(a.sorted.num_unique[table]) {}
    __device__ void Start(int64_t, int, int, int32_t, bool) {}
    __device__ void Take(int, int64_t unique, int64_t row, int32_t column, bool has_column,
                         const float (&sum)[Vector::kSize]) {
      if (!has_column) return;
      const int64_t at = unique - first_unique;
      if (column == 0 && sink.indices != nullptr) sink.indices[at] = row;
      const int64_t element = at * sink.dim + column;
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

}  // namespace

int64_t ReduceRowsScratchBytesCuda(const Group& group) {
  return ReduceScratchBytes<StoreGradient<float>>(group);
}

cudaError_t ReduceRowsCuda(const Group& group, const SortedRows& sorted, const TableGrad* grads,
                           void* scratch, cudaStream_t stream, const ReduceOptions& options) {
  if (group.batch.num_ids == 0) return cudaSuccess;
  std::vector<int64_t> alignments;
  for (int64_t t = 0; t < group.num_tables; ++t) alignments.push_back(Alignment(grads[t].values));
  ReducePlan plan = PlanReduce(group, alignments, /*max_plain_columns=*/0);
  if (plan.max_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return ForDeviceType(group.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Sink = StoreGradient<T>;
    std::vector<typename Sink::Table> sinks;
    for (int64_t t = 0; t < group.num_tables; ++t) {
      const GradientWire as_it_is = {group.dtype, 1};
      sinks.push_back({grads[t].indices, static_cast<char*>(grads[t].values), group.tables[t].dim,
                       options.wires == nullptr ? as_it_is : options.wires[t]});
    }
    ReduceLauncher<T> launcher(group, sorted, &plan, sinks, scratch, stream, options.num_owners);
    launcher.template ListLongRows<Sink>({});
    if (plan.weighting == Weighting::kNone) {
      launcher.template Segments<Sink, Weighting::kNone>({});
      launcher.template Pieces<Sink, Weighting::kNone>({});
    } else {
      plan.weighting == Weighting::kClipping
          ? launcher.template Segments<Sink, Weighting::kClipping>({})
          : launcher.template Segments<Sink, Weighting::kWeights>({});
      launcher.template Pieces<Sink, Weighting::kWeights>({});
    }
    launcher.AddPieces();
    launcher.template TakeLongRows<Sink>({});
    return launcher.End();
  });
}

}  // namespace group_embedding
