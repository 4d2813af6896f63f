// Peer buffers into which the ranks of a host put what they send each other: rows of tables, and
// gradients, come straight from the kernel that has them.
//
// A peer buffer has the same size on all ranks, and a number. Each rank offers one that nobody uses
// for an exchange, and tells the others its number. Who has to put something there does so, and
// then says so: by a barrier, or from the kernel that did it (PeerSignals). A peer buffer may be
// used again once its owner's next exchange has begun on all ranks: what was done with it came
// before that on every rank's stream.
//
// Thread safety: calls from one thread at a time, except Abort, Error and the end of a Room. Order:
// all ranks enqueue the same barriers and add the same peer buffers, in the same order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/transport/peer_memory.h"
#include "exchange/transport/peer_signals.h"

namespace group_embedding {

class PeerBufferPool {
 public:
  // A rank's, for as long as it has this.
  using Buffer = std::shared_ptr<const PeerMemory>;
  static constexpr int64_t kNone = -1;

  // All ranks together; as PeerMemory::Make. `communicator` must live as long.
  static std::unique_ptr<PeerBufferPool> Make(Communicator* communicator, double timeout_seconds,
                                              cudaStream_t stream, std::string* why_not);
  ~PeerBufferPool();
  PeerBufferPool(const PeerBufferPool&) = delete;
  PeerBufferPool& operator=(const PeerBufferPool&) = delete;

  // Before an exchange: what was done with peer buffers on another stream has been done.
  void Begin(cudaStream_t stream);

  // The number of the largest peer buffer that nobody has here, or kNone.
  int64_t FindFree() const;
  Buffer Take(int64_t number) const { return number == kNone ? nullptr : peer_buffers_[number]; }
  int64_t Bytes(int64_t number) const {
    return number == kNone ? -1 : peer_buffers_[number]->bytes();
  }
  // In the peer buffer of a rank, as this one sees it.
  char* In(int64_t number, int rank) const { return peer_buffers_[number]->data(rank); }

  // All ranks together, with the same `bytes`: its number, or kNone on all of them, where some rank
  // has no memory; and then peer buffers of this size are not asked for again.
  int64_t Add(int64_t bytes, cudaStream_t stream);
  // Why the peer buffers that were asked for last could not be had; empty: they could.
  const std::string& lack() const { return lack_; }
  // Less than what a rank had no memory for.
  bool MayHave(int64_t bytes) const { return bytes < too_many_bytes_; }

  // What was enqueued before it has happened on every rank, for all to see, before what comes after
  // begins on any. The host does not wait. Where a rank does not come within twice the time-out,
  // the barrier ends all the same, as do those that follow, at once.
  void EnqueueBarrier(cudaStream_t stream);

  // What a kernel tells the others, in parts, by channels from 1 on: each may tell the others once.
  PeerSignals NextSignals();
  // What follows begins once all others have told this rank. Else as a barrier.
  void EnqueueWait(const PeerSignals& signals, int channel, cudaStream_t stream);

  // Barriers, now and to come, wait no longer.
  void Abort();

  // A sentence that names the rank that a barrier waited for in vain; empty: none so far. For all
  // that was enqueued, after the stream has been waited for.
  std::string Error() const;

 private:
  // What barriers and the host tell each other, in page-locked memory.
  struct Board {
    int64_t late;   // 1 + the rank that was waited for in vain; 0: none
    int32_t ended;  // barriers wait no longer
  };

  PeerBufferPool(Communicator* communicator, std::unique_ptr<PeerMemory> words,
                 double timeout_seconds);
  void Enqueue(const PeerSignals& signals, int channel, bool tells, cudaStream_t stream);

  Communicator* const communicator_;
  const std::unique_ptr<PeerMemory> words_;  // of PeerSignals
  const double timeout_seconds_;
  std::vector<Buffer> peer_buffers_;
  int64_t too_many_bytes_ = INT64_MAX;
  std::string lack_;
  uint64_t epoch_ = 0;  // that others were told last, or will be
  cudaStream_t stream_ = nullptr;
  bool has_stream_ = false;
  volatile Board* board_ = nullptr;
};

}  // namespace group_embedding
