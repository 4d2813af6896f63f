// RequestBuffers: page-locked memory that requests are copied to the GPU from, and what must live
// until the GPU has done with a request.
#pragma once

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/device_buffer.h"

namespace group_embedding {

// Thread-safe.
class RequestBuffers {
 public:
  class Buffer {
   public:
    explicit Buffer(int64_t bytes) : bytes_(bytes) {
      RequireCuda(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault));
      RequireCuda(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
    }
    ~Buffer() {
      if (is_enqueued_) cudaEventSynchronize(done_);
      if (done_ != nullptr) cudaEventDestroy(done_);
      cudaFreeHost(data_);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    char* data() const { return static_cast<char*>(data_); }

   private:
    friend class RequestBuffers;
    const int64_t bytes_;
    void* data_ = nullptr;
    cudaEvent_t done_ = nullptr;
    bool is_enqueued_ = false;
    std::shared_ptr<void> held_;
  };

  // A buffer of at least so many bytes, for one request.
  std::unique_ptr<Buffer> Take(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto chosen = buffers_.end();
    for (auto at = buffers_.begin(); at != buffers_.end(); ++at) {
      if (IsFree(at->get()) && (*at)->bytes_ >= bytes) chosen = at;
    }
    if (chosen == buffers_.end()) {
      int64_t size = kLeastBytes;
      while (size < bytes) size *= 2;
      return std::make_unique<Buffer>(size);
    }
    std::unique_ptr<Buffer> taken = std::move(*chosen);
    *chosen = std::move(buffers_.back());
    buffers_.pop_back();
    return taken;
  }

  // The request is enqueued: when the stream has come here, `held` goes, and the buffer is free.
  void Give(std::unique_ptr<Buffer> buffer, cudaStream_t stream, std::shared_ptr<void> held) {
    RequireCuda(cudaEventRecord(buffer->done_, stream));
    buffer->is_enqueued_ = true;
    buffer->held_ = std::move(held);
    const std::lock_guard<std::mutex> lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

 private:
  static constexpr int64_t kLeastBytes = 64 << 10;

  static bool IsFree(Buffer* buffer) {
    if (buffer->is_enqueued_ && cudaEventQuery(buffer->done_) != cudaErrorNotReady) {
      buffer->is_enqueued_ = false;
      buffer->held_.reset();
    }
    return !buffer->is_enqueued_;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace group_embedding
#endif
