#include "python/overflow.h"

#include "optimizer/overflow.h"
#include "python/array.h"
#include "python/run.h"

namespace group_embedding {

namespace py = pybind11;

void PyOverflow(const std::vector<py::object>& arrays, const std::vector<std::string>& dtypes,
                const py::object& result, py::object allocate, int num_threads, uintptr_t stream) {
  const ArrayView to = ViewArray(result, "result");
  RequireShape(to, {1});
  RequireWritable(to);
  RequireCount("dtypes", arrays.size(), dtypes.size());
  std::vector<Numbers> numbers;
  for (size_t a = 0; a < arrays.size(); ++a) {
    const DataType dtype = ParseDataType(At("dtypes", a), dtypes[a]);
    const ArrayView view = ViewRows(arrays[a], At("arrays", a), dtype, 1, to.on_gpu);
    RequireContiguous(view);
    numbers.push_back({view.data, view.num_items(), dtype});
  }
  const int64_t count = static_cast<int64_t>(numbers.size());
  float* overflow = static_cast<float*>(to.data);
  if (!to.on_gpu) {
    *overflow = OverflowCpu(numbers.data(), count, ThreadedFor(num_threads));
    return;
  }
#if GROUP_EMBEDDING_CUDA
  Scratch scratch(std::move(allocate), to.on_gpu);
  const auto cuda_stream = reinterpret_cast<cudaStream_t>(stream);
  void* memory = scratch.Get("overflow", OverflowScratchBytesCuda(numbers.data(), count));
  CheckCuda(OverflowCuda(numbers.data(), count, memory, overflow, cuda_stream), "overflow");
  CheckCuda(cudaStreamSynchronize(cuda_stream), "overflow");  // the scratch goes
#else
  (void)allocate, (void)stream;
#endif
}

}  // namespace group_embedding
