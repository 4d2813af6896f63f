// Memory of each rank's GPU that all ranks of the host read and write in place, over NVLink.
//
//   PeerMemory mine(bytes);                    each rank: memory of its current device
//   ... every rank gets the handles of all ...
//   PeerRanks ranks(rank, &mine, handles, 60);
//   ranks.data(n)                              where this rank sees what rank n calls mine.data()
//
// The first kReservedBytes of the memory are the barrier's. What lies where is the callers' to
// agree.
//
// Thread safety: one thread at a time. Order: all ranks enqueue the same barriers in the same
// order, each on one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace group_embedding {

// Throws std::runtime_error where CUDA gives no memory.
class PeerMemory {
 public:
  static constexpr int64_t kReservedBytes = 4096;
  static constexpr int kMaxRanks = 64;

  explicit PeerMemory(int64_t bytes);  // zeroed
  ~PeerMemory();                       // peers must have closed it
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  std::string Handle() const;  // for the other processes of the host

 private:
  char* data_ = nullptr;
  int64_t bytes_;
};

class PeerRanks {
 public:
  // handles: of all ranks, in order. `memory` must live as long. Throws std::runtime_error where a
  // peer's memory cannot be reached.
  PeerRanks(int rank, const PeerMemory* memory, const std::vector<std::string>& handles,
            double timeout_seconds);
  ~PeerRanks();
  PeerRanks(const PeerRanks&) = delete;
  PeerRanks& operator=(const PeerRanks&) = delete;

  int rank() const { return rank_; }
  int num_ranks() const { return static_cast<int>(data_.size()); }
  char* data(int rank) const { return data_[rank]; }

  // What was enqueued before it has happened on every rank, for all to see, before what comes after
  // begins on any. The host does not wait. Where a rank does not come in time the barrier ends all
  // the same, *failed() is set for all that follows, and so is Error().
  cudaError_t EnqueueBarrier(cudaStream_t stream);

  // On the device: 0, or 1 from the first barrier on that a rank did not come to. Kernels that
  // write what must not be wrong look at it.
  const int* failed() const { return failed_; }

  // A sentence that names the rank that a barrier waited for in vain; empty: none so far. For all
  // that was enqueued, after the stream has been waited for.
  std::string Error() const;

 private:
  const int rank_;
  const double timeout_seconds_;
  std::vector<char*> data_;
  uint64_t epoch_ = 0;       // barriers enqueued
  int* failed_ = nullptr;    // device
  int64_t* late_ = nullptr;  // page-locked: 1 + the rank that was late; 0: none
};

}  // namespace group_embedding
