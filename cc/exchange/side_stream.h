// A stream for work that needs nothing of what follows on another one, and is beside it: whatever
// both have ready, its blocks begin first.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <unordered_map>

#include "table/device_buffer.h"

namespace group_embedding {

class SideStream {
 public:
  // That of the current device. One thread at a time uses it.
  static SideStream& OfDevice() {
    static std::mutex mutex;
    static auto* streams = new std::unordered_map<int, SideStream>;  // the GPU may be gone before
    int device;
    RequireCuda(cudaGetDevice(&device));
    const std::lock_guard<std::mutex> lock(mutex);
    return (*streams)[device];
  }

  SideStream() {
    int least, greatest;
    RequireCuda(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    RequireCuda(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, greatest));
    for (cudaEvent_t* event : {&begun_, &done_}) {
      RequireCuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
  }

  // What is enqueued on the stream that it returns comes after all that is on `main` now. Memory
  // that is used there must have been allocated before.
  cudaStream_t Begin(cudaStream_t main) {
    RequireCuda(cudaEventRecord(begun_, main));
    RequireCuda(cudaStreamWaitEvent(side_, begun_, 0));
    return side_;
  }

  // What is enqueued on `main` from now on comes after all that is on it now.
  void End(cudaStream_t main) {
    RequireCuda(cudaEventRecord(done_, side_));
    RequireCuda(cudaStreamWaitEvent(main, done_, 0));
  }

 private:
  cudaStream_t side_;
  cudaEvent_t begun_, done_;
};

}  // namespace group_embedding
