#include "python/run.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#if GROUP_EMBEDDING_CUDA
#include "core/device_buffer.h"
#endif
#include "python/array.h"

namespace group_embedding {

namespace py = pybind11;

ParallelFor ThreadedFor(int num_threads) {
  if (num_threads <= 1) return SerialFor;
  return [num_threads](int64_t count, int64_t cost,
                       const std::function<void(int64_t, int64_t)>& body) {
    constexpr int64_t kWorthAThread = 20000;  // nanoseconds
    const int64_t threads = std::min<int64_t>(num_threads, 1 + count * cost / kWorthAThread);
    if (threads <= 1) return SerialFor(count, cost, body);
    const int64_t part = std::max<int64_t>(1, count / (threads * 4));
    std::atomic<int64_t> next{0};
    FirstException exception;
    auto work = [&] {
      for (int64_t begin; (begin = next.fetch_add(part)) < count;) {
        exception.Catch([&] { body(begin, std::min(count, begin + part)); });
      }
    };
    std::vector<std::thread> others;
    for (int64_t t = 1; t < threads; ++t) others.emplace_back(work);
    work();
    for (std::thread& thread : others) thread.join();
    exception.Rethrow();
  };
}

Scratch::Scratch(py::object allocate, bool on_gpu)
    : allocate_(std::move(allocate)), on_gpu_(on_gpu) {
  if (on_gpu_ && allocate_.is_none()) {
    throw py::value_error(
        "allocate: expected a function that takes a number of bytes and returns an array in GPU "
        "memory, got None");
  }
}

void* Scratch::Get(const std::string& name, int64_t bytes) {
  Piece& piece = pieces_[name];
  if (piece.bytes >= bytes && piece.data != nullptr) return piece.data;
  bytes = std::max<int64_t>(bytes, 1);
  if (on_gpu_) {
    piece.owner = allocate_(bytes);
    const ArrayView view = ViewArray(piece.owner, "allocate(" + std::to_string(bytes) + ")");
    if (!view.on_gpu || view.num_items() * view.item_bytes() < bytes) {
      throw py::value_error(view.name + ": expected at least so many bytes of GPU memory");
    }
    piece.data = view.data;
  } else {
    piece.owner = py::bytearray(std::string(bytes + 63, '\0'));
    const uintptr_t address = reinterpret_cast<uintptr_t>(PyByteArray_AS_STRING(piece.owner.ptr()));
    piece.data = reinterpret_cast<void*>((address + 63) / 64 * 64);
  }
  piece.bytes = bytes;
  return piece.data;
}

#if GROUP_EMBEDDING_CUDA

void CheckCuda(cudaError_t error, const char* what) {
  Require(CudaStatus(error).In(std::string(what) + ": "));
}

DeviceFault::DeviceFault(Scratch* scratch)
    : fault_(static_cast<Fault*>(scratch->Get("fault", sizeof(Fault)))) {
  const Fault none;
  CheckCuda(cudaMemcpy(fault_, &none, sizeof(none), cudaMemcpyHostToDevice), "fault");
}

Fault DeviceFault::Take(uintptr_t stream) {
  Fault fault;
  const Fault none;
  py::gil_scoped_release release;
  const cudaStream_t cuda_stream = reinterpret_cast<cudaStream_t>(stream);
  CheckCuda(cudaStreamSynchronize(cuda_stream), "check");
  CheckCuda(cudaMemcpy(&fault, fault_, sizeof(fault), cudaMemcpyDeviceToHost), "check");
  CheckCuda(cudaMemcpy(fault_, &none, sizeof(none), cudaMemcpyHostToDevice), "check");
  return fault;
}

#endif

}  // namespace group_embedding
