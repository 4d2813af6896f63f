// SideStream: a second stream for work that may run beside later work of a stream. Its blocks have
// priority over the other stream's.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace group_embedding {

class SideStream {
 public:
  SideStream() = default;
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream() {
    End();
    if (side_.stream == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex());
    idle()[device_].push_back(side_);
  }

  // Takes one of the current device that nobody else has. What is enqueued on it comes after all
  // that is on `main` now. Memory that is used there must have been allocated before.
  cudaError_t Begin(cudaStream_t main) {
    cudaError_t error = cudaGetDevice(&device_);
    if (error == cudaSuccess && side_.stream == nullptr) error = Take();
    if (error == cudaSuccess) error = cudaEventRecord(side_.begun, main);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(side_.stream, side_.begun, 0);
    has_begun_ = error == cudaSuccess;
    main_ = main;
    return error;
  }

  cudaStream_t stream() const { return side_.stream; }

  // What is enqueued on `main` from now on comes after all that is on it now.
  cudaError_t End() {
    if (!has_begun_) return cudaSuccess;
    has_begun_ = false;
    const cudaError_t error = cudaEventRecord(side_.done, side_.stream);
    return error == cudaSuccess ? cudaStreamWaitEvent(main_, side_.done, 0) : error;
  }

 private:
  struct Side {
    cudaStream_t stream = nullptr;
    cudaEvent_t begun = nullptr, done = nullptr;
  };

  // The unused streams of each device. Never freed, since the CUDA context may end first.
  static std::unordered_map<int, std::vector<Side>>& idle() {
    static auto* idle = new std::unordered_map<int, std::vector<Side>>;
    return *idle;
  }
  static std::mutex& mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }

  cudaError_t Take() {
    {
      const std::lock_guard<std::mutex> lock(mutex());
      std::vector<Side>& sides = idle()[device_];
      if (!sides.empty()) {
        side_ = sides.back();
        sides.pop_back();
        return cudaSuccess;
      }
    }
    Side side;
    int least, greatest;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    for (cudaEvent_t* event : {&side.begun, &side.done}) {
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    }
    if (error == cudaSuccess) {
      error = cudaStreamCreateWithPriority(&side.stream, cudaStreamNonBlocking, greatest);
    }
    if (error == cudaSuccess) side_ = side;
    return error;
  }

  Side side_;
  int device_ = 0;
  bool has_begun_ = false;
  cudaStream_t main_ = nullptr;
};

}  // namespace group_embedding
