// DeviceStreams: the streams that a table is used on, and its own stream for exclusive methods.
#pragma once

#include <cuda_runtime_api.h>

#include <map>

namespace group_embedding {

// Events are recorded where streams meet, not at every use: whatever a stream was given until then
// is taken for a use of the table. Needs a lock.
//
// A mark lets the own stream work while other streams go on: it is an instant that the own stream
// comes after. As long as no other stream has begun to use the table since, what these are given
// uses the rows of batches in flight and nothing else, and the own stream may use all others.
class DeviceStreams {
 public:
  DeviceStreams() {
    // The own stream has the highest priority: its kernels are short, and other streams wait for
    // them.
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaStreamCreateWithPriority(&own_, cudaStreamNonBlocking, greatest);
    cudaEventCreateWithFlags(&mark_, cudaEventDisableTiming | cudaEventBlockingSync);
    cudaEventCreateWithFlags(&alone_, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&following_, cudaEventDisableTiming);
  }
  ~DeviceStreams() {
    cudaEventDestroy(mark_);
    cudaEventDestroy(alone_);
    cudaEventDestroy(following_);
    cudaStreamDestroy(own_);
  }
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  cudaStream_t own() const { return own_; }

  // `stream` uses the table: after all that was said to be done alone.
  void Use(cudaStream_t stream) {
    if (stream != own_) ++num_uses_;
    const auto [at, is_new] = seen_.try_emplace(stream, 0);
    if (at->second == last_alone_) return;
    if (stream != alone_on_) cudaStreamWaitEvent(stream, alone_, 0);
    at->second = last_alone_;
  }

  // `stream` takes over from `*from`.
  void Follow(cudaStream_t* from, cudaStream_t stream) {
    if (*from != stream && !IsAfterMark(stream)) {
      cudaEventRecord(following_, *from);
      cudaStreamWaitEvent(stream, following_, 0);
    }
    *from = stream;
  }

  // `stream` may change everything: after all uses so far on other streams.
  void BeginAlone(cudaStream_t stream) {
    Use(stream);
    if (IsAfterMark(stream)) return;
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

  // The own stream waits for all that streams were given until now.
  void Mark() {
    BeginAlone(own_);
    cudaEventRecord(mark_, own_);
    uses_at_mark_ = num_uses_;
  }
  // Needs no lock.
  void AwaitMark() const { cudaEventSynchronize(mark_); }
  bool IsUsedSinceMark() const { return num_uses_ != uses_at_mark_; }
  // From BeginAfterMark to EndAfterMark, the own stream waits for nothing that streams were given
  // since the mark. Then it is waited for, and later uses come after it.
  void BeginAfterMark() {
    Use(own_);
    is_after_mark_ = true;
  }
  void EndAfterMark() {
    cudaStreamSynchronize(own_);
    EndAlone(own_);
    is_after_mark_ = false;
  }
  bool IsAfterMark(cudaStream_t stream) const { return is_after_mark_ && stream == own_; }

 private:
  cudaStream_t own_ = nullptr;
  cudaEvent_t alone_ = nullptr;  // the end of what was done alone last
  cudaEvent_t following_ = nullptr;
  cudaEvent_t mark_ = nullptr;
  long num_uses_ = 0;  // on other streams than the own one
  long uses_at_mark_ = -1;
  bool is_after_mark_ = false;
  std::map<cudaStream_t, long> seen_;  // and which time alone it has waited for
  long last_alone_ = 0;
  cudaStream_t alone_on_ = nullptr;
};

}  // namespace group_embedding
