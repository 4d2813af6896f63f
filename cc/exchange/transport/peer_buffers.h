// Peer buffers: GPU memory that other ranks of the host write into directly. The kernel that
// computes rows or gradients writes them there, without a copy in between.
//
// A peer buffer has the same size on all ranks, and a number. For an exchange, each rank offers an
// unused peer buffer and sends its number to the others. They write into it and then signal that
// they have: by a barrier, or from the kernel that wrote (PeerSignals). A peer buffer may be reused
// once its owner's next exchange has begun on all ranks, because every rank's stream has passed the
// last use by then.
//
// Thread safety: calls from one thread at a time, except Abort, status and the release of a Buffer.
// Order: all ranks enqueue the same barriers and add the same peer buffers, in the same order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "exchange/transport/peer_memory.h"
#include "exchange/transport/peer_signals.h"

namespace group_embedding {

class PeerBufferPool {
 public:
  // A peer buffer in use: it is not offered again while a Buffer refers to it.
  using Buffer = std::shared_ptr<const PeerMemory>;
  static constexpr int64_t kNone = -1;

  // All ranks call it together. Fails as PeerMemory::Make does. communicator: must outlive the
  // pool.
  static std::unique_ptr<PeerBufferPool> Make(Communicator* communicator, double timeout_seconds,
                                              cudaStream_t stream, Status* why_not);
  ~PeerBufferPool();
  PeerBufferPool(const PeerBufferPool&) = delete;
  PeerBufferPool& operator=(const PeerBufferPool&) = delete;

  // Called before an exchange: if the last one ran on another stream, waits for it.
  void Begin(cudaStream_t stream);

  // The number of the largest peer buffer that is not in use on this rank, or kNone.
  int64_t FindFree() const;
  Buffer Take(int64_t number) const { return number == kNone ? nullptr : peer_buffers_[number]; }
  int64_t Bytes(int64_t number) const {
    return number == kNone ? -1 : peer_buffers_[number]->bytes();
  }
  // The address of peer buffer `number` of `rank`, in this rank's address space.
  char* In(int64_t number, int rank) const { return peer_buffers_[number]->data(rank); }

  // All ranks call it together with the same `bytes`. Returns the number of a new peer buffer, or
  // kNone on all ranks if one has no memory for it; MayHave is then false for sizes from `bytes`
  // on.
  int64_t Add(int64_t bytes, cudaStream_t stream);
  // Why the last Add failed.
  const Status& lack() const { return lack_; }
  // Whether no Add of this size, or a smaller one, has failed.
  bool MayHave(int64_t bytes) const { return bytes < too_many_bytes_; }

  // A barrier of the ranks' streams: work enqueued before it has ended and is visible on every rank
  // before work enqueued after it begins on any. The host does not wait. If a rank is missing for
  // twice the time-out, the barrier ends, and later ones end at once; see status.
  void EnqueueBarrier(cudaStream_t stream);

  // Signals for one exchange. A kernel may signal the other ranks once on each channel from 1 on.
  PeerSignals NextSignals();
  // Work enqueued after it begins once all other ranks have signalled this one on `channel`. A
  // missing rank ends it as a barrier.
  void EnqueueWait(const PeerSignals& signals, int channel, cudaStream_t stream);

  // Ends present and future barriers and waits at once.
  void Abort();

  // An error that names the rank for which a barrier waited in vain. Covers all work that the host
  // has waited for.
  Status status() const;

 private:
  // Shared by barrier kernels and the host, in page-locked memory.
  struct Board {
    int64_t late;   // 1 + the rank for which a barrier waited in vain; 0: none
    int32_t ended;  // barriers wait no longer
  };

  PeerBufferPool(Communicator* communicator, std::unique_ptr<PeerMemory> words,
                 double timeout_seconds);
  void Enqueue(const PeerSignals& signals, int channel, bool signals_peers, cudaStream_t stream);

  Communicator* const communicator_;
  const std::unique_ptr<PeerMemory> words_;  // of PeerSignals
  const double timeout_seconds_;
  std::vector<Buffer> peer_buffers_;
  int64_t too_many_bytes_ = INT64_MAX;
  Status lack_;
  uint64_t epoch_ = 0;  // of the last signals
  cudaStream_t stream_ = nullptr;
  bool has_stream_ = false;
  volatile Board* board_ = nullptr;
};

}  // namespace group_embedding
