// DeviceBuffer: device memory with the lifetime of an object. RequireCuda: turns CUDA's errors into
// exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace group_embedding {

inline void RequireCuda(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
  }
}

// Makes a device the current one for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&former_);
    if (former_ != device) cudaSetDevice(device);
    is_other_ = former_ != device;
  }
  ~OnDevice() {
    if (is_other_) cudaSetDevice(former_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int former_ = 0;
  bool is_other_;
};

template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t count) {
    RequireCuda(
        cudaMalloc(reinterpret_cast<void**>(&data_), std::max<int64_t>(count, 1) * sizeof(T)));
  }
  DeviceBuffer(const T* host, int64_t count, cudaStream_t stream) : DeviceBuffer(count) {
    RequireCuda(cudaMemcpyAsync(data_, host, count * sizeof(T), cudaMemcpyHostToDevice, stream));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

// Waits for the stream.
template <typename T>
std::vector<T> ToHost(const T* device, int64_t count, cudaStream_t stream) {
  std::vector<T> host(count);
  RequireCuda(
      cudaMemcpyAsync(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
  RequireCuda(cudaStreamSynchronize(stream));
  return host;
}

}  // namespace group_embedding
