// The stream, threads and scratch memory of the device that an op runs on, as the core takes them.
#pragma once

#include "core/parallel.h"
#include "tensorflow/core/framework/op_kernel.h"

#if GOOGLE_CUDA
#include <cuda_runtime_api.h>

// Not stream_executor.h, which in TensorFlow 2.19 includes headers of LLVM that are not there.
#include "xla/stream_executor/stream.h"
#endif

namespace group_embedding {

// TensorFlow's own threads for the ops of a CPU. Work of fewer nanoseconds than `least` stays on
// the calling thread.
inline ParallelFor ThreadsOf(tensorflow::OpKernelContext* context, int64_t least = 0) {
  auto* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
  return [workers, least](int64_t count, int64_t cost,
                          const std::function<void(int64_t, int64_t)>& body) {
    if (count * cost < least) return SerialFor(count, cost, body);
    constexpr int64_t kCyclesPerNanosecond = 3;
    FirstException exception;
    workers->ParallelFor(count, cost * kCyclesPerNanosecond, [&](int64_t begin, int64_t end) {
      exception.Catch([&] { body(begin, end); });
    });
    exception.Rethrow();
  };
}

// Memory that lives as long as the op runs. On a GPU, memory freed at the end of an op is reused
// only by work enqueued after it on the same stream.
inline absl::Status AllocateScratch(tensorflow::OpKernelContext* context, int64_t bytes,
                                    tensorflow::Tensor* scratch) {
  return context->allocate_temp(tensorflow::DT_INT8, tensorflow::TensorShape({bytes}), scratch);
}

// The GPU that this thread calls, which a thread that goes on for it must call too.
inline int CurrentDevice() {
  int device = 0;
#if GOOGLE_CUDA
  if (cudaGetDevice(&device) != cudaSuccess) device = 0;
#endif
  return device;
}

inline void SetCurrentDevice(int device) {
#if GOOGLE_CUDA
  cudaSetDevice(device);
#endif
}

#if GOOGLE_CUDA
inline cudaStream_t StreamOf(tensorflow::OpKernelContext* context) {
  return reinterpret_cast<cudaStream_t>(
      context->op_device_context()->stream()->platform_specific_handle().stream);
}

inline absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(std::string(what) + ": " + cudaGetErrorString(error));
}
#endif

}  // namespace group_embedding
