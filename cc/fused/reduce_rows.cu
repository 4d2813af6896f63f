#include "fused/launch_reduce.cuh"

namespace group_embedding {
namespace {

// The sink that keeps the gradients, as the indices and values of an IndexedSlices.
template <typename T>
struct StoreGradient {
  struct Shared {};
  struct Common {};
  static constexpr int64_t kMaxTaken = kEntriesPerTeam;
  __device__ static bool IsActive(const Common&) { return true; }
  __device__ static bool NeedsRow(const Common&) { return false; }

  int64_t* indices;
  T* values;
  int64_t dim;

  template <typename Vector>
  struct Team {
    const ReduceArgs& args;
    const ReduceTask& task;
    const StoreGradient sink;
    const int64_t first_unique;  // of the table

    __device__ Team(const ReduceArgs& a, int32_t table, const StoreGradient& store, const Common&,
                    const group_embedding::Team&, Shared&)
        : args(a), task(a.tasks[table]), sink(store), first_unique(a.sorted.num_unique[table]) {}
    __device__ void Take(int, int64_t unique, int32_t column, bool has_column,
                         const float (&sum)[Vector::kSize]) {
      if (!has_column) return;
      const int64_t at = unique - first_unique;
      if (column == 0) sink.indices[at] = args.RowOf(task, unique);
      Vector::Round(sum).Stream(sink.values + at * sink.dim + column);
    }
    __device__ void Finish(int, int64_t, int, int32_t, bool) {}
    __device__ void EndSum(int64_t, bool) {}
  };

  struct Block {
    const StoreGradient& sink;
    int64_t row;

    __device__ Block(const StoreGradient& store, const Common&, int64_t row_in_table)
        : sink(store), row(row_in_table) {}
    __device__ void Take(int, int64_t unique, int32_t column, float sum) {
      if (column == 0) sink.indices[unique] = row;
      sink.values[unique * sink.dim + column] = FromFloat<T>(sum);
    }
    template <typename Add>
    __device__ void EndSum(Add&&) {}
  };
};

}  // namespace

int64_t ReduceRowsScratchBytesCuda(const Group& group) {
  return ReduceScratchBytes<StoreGradient<float>>(group);
}

cudaError_t ReduceRowsCuda(const Group& group, const SortedRows& sorted, const TableGrad* grads,
                           void* scratch, cudaStream_t stream) {
  std::vector<int64_t> alignments;
  for (int64_t t = 0; t < group.num_tables; ++t) alignments.push_back(Alignment(grads[t].values));
  ReducePlan plan = PlanReduce(group, alignments);
  return ForDeviceType(group.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    std::vector<StoreGradient<T>> sinks;
    for (int64_t t = 0; t < group.num_tables; ++t) {
      sinks.push_back({grads[t].indices, static_cast<T*>(grads[t].values), group.tables[t].dim});
    }
    return LaunchReduce<T, StoreGradient<T>>(group, sorted, &plan, sinks, {}, scratch, stream);
  });
}

}  // namespace group_embedding
