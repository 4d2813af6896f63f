// DeviceBuffer: device memory with the lifetime of an object. StreamBuffer: the same, in the order
// of a stream. RequireCuda: turns CUDA's errors into exceptions; CudaStatus: into words.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/status.h"

namespace group_embedding {

// CUDA's error in words. It is taken: the next check of a launch would return it again.
inline Status CudaStatus(cudaError_t error) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return std::string("CUDA: ") + cudaGetErrorString(error);
}

// The error of an allocation that has failed, which is taken as by CudaStatus.
inline Status NoDeviceMemory() {
  cudaGetLastError();
  return "there is no GPU, or it has no memory";
}

// Bytes of the current device's memory that nobody has taken.
inline int64_t DeviceBytesLeft() {
  size_t left = 0, total = 0;
  if (cudaMemGetInfo(&left, &total) != cudaSuccess) cudaGetLastError();
  return static_cast<int64_t>(left);
}

// CudaStatus of an allocation of so many bytes.
inline Status AllocatedStatus(cudaError_t error, int64_t bytes) {
  Status status = CudaStatus(error);
  if (error != cudaErrorMemoryAllocation) return status;
  return "a call wants " + std::to_string(bytes) + " bytes, and " +
         std::to_string(DeviceBytesLeft()) + " bytes of the GPU's memory are left (out of memory)";
}

inline void RequireCuda(cudaError_t error) { Require(CudaStatus(error)); }

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
    const int64_t bytes = std::max<int64_t>(count, 1) * static_cast<int64_t>(sizeof(T));
    Require(AllocatedStatus(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), bytes));
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

// The pool that StreamBuffers of the current device come from. It is never destroyed.
inline cudaMemPool_t StreamBufferPool() {
  constexpr uint64_t kKept = uint64_t{256} << 20;  // bytes that stay with the process
  static auto* pools = new std::map<int, cudaMemPool_t>;
  static std::mutex mutex;
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto at = pools->find(device);
  if (at != pools->end()) return at->second;
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = device;
  cudaMemPool_t pool;
  RequireCuda(cudaMemPoolCreate(&pool, &props));
  uint64_t kept = kKept;
  RequireCuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept));
  int no = 0;  // no stream waits for memory that another one has freed
  RequireCuda(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no));
  return (*pools)[device] = pool;
}

// For work on one stream. Unlike a DeviceBuffer, whose end waits for all streams of the device, it
// waits for nothing.
template <typename T>
class StreamBuffer {
 public:
  StreamBuffer(int64_t count, cudaStream_t stream) : stream_(stream) {
    const int64_t bytes = std::max<int64_t>(count, 1) * static_cast<int64_t>(sizeof(T));
    void** data = reinterpret_cast<void**>(&data_);
    const cudaError_t error = cudaMallocFromPoolAsync(data, bytes, StreamBufferPool(), stream);
    Require(AllocatedStatus(error, bytes));
  }
  StreamBuffer(const T* host, int64_t count, cudaStream_t stream) : StreamBuffer(count, stream) {
    RequireCuda(cudaMemcpyAsync(data_, host, count * sizeof(T), cudaMemcpyHostToDevice, stream));
  }
  ~StreamBuffer() { cudaFreeAsync(data_, stream_); }
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;

  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  cudaStream_t stream_;
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
