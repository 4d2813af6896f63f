// DeviceStreams: the streams that a table is used on, and its own stream for exclusive methods.
#pragma once

#include <cuda_runtime_api.h>

#include <map>

namespace group_embedding {

// Events are recorded where streams meet, not at every use: whatever a stream was given until then
// is taken for a use of the table. Needs a lock.
class DeviceStreams {
 public:
  DeviceStreams() {
    cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&alone_, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&following_, cudaEventDisableTiming);
  }
  ~DeviceStreams() {
    cudaEventDestroy(alone_);
    cudaEventDestroy(following_);
    cudaStreamDestroy(own_);
  }
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  cudaStream_t own() const { return own_; }

  // `stream` uses the table: after all that was said to be done alone.
  void Use(cudaStream_t stream) {
    const auto [at, is_new] = seen_.try_emplace(stream, 0);
    if (at->second == last_alone_) return;
    if (stream != alone_on_) cudaStreamWaitEvent(stream, alone_, 0);
    at->second = last_alone_;
  }

  // `stream` takes over from `*from`.
  void Follow(cudaStream_t* from, cudaStream_t stream) {
    if (*from != stream) {
      cudaEventRecord(following_, *from);
      cudaStreamWaitEvent(stream, following_, 0);
    }
    *from = stream;
  }

  // `stream` may change everything: after all uses so far on other streams.
  void BeginAlone(cudaStream_t stream) {
    Use(stream);
    for (const auto& [other, ignored] : seen_) {
      if (other == stream) continue;
      cudaEventRecord(following_, other);
      cudaStreamWaitEvent(stream, following_, 0);
    }
  }
  // Later uses on other streams wait for what `stream` was given until now.
  void EndAlone(cudaStream_t stream) {
    cudaEventRecord(alone_, stream);
    alone_on_ = stream;
    seen_[stream] = ++last_alone_;
  }

 private:
  cudaStream_t own_ = nullptr;
  cudaEvent_t alone_ = nullptr;  // the end of what was done alone last
  cudaEvent_t following_ = nullptr;
  std::map<cudaStream_t, long> seen_;  // and which time alone it has waited for
  long last_alone_ = 0;
  cudaStream_t alone_on_ = nullptr;
};

}  // namespace group_embedding
