// Communicator: sends bytes between the ranks of a job.
//
// Thread safety: one thread at a time calls it, but any thread may call Abort and SentBytes. Order:
// every rank makes the same calls in the same order. Each rank chooses the stream of each call;
// calls run one after the other, on different streams too. Memory is on the communicator's device
// (for the local communicator, on the stream's device).
//
// Errors: after an error the communicator is aborted: enqueued calls end without all their data,
// later calls return the same error, and no rank waits for a missing one longer than the time-out.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

struct CUstream_st;

namespace group_embedding {

using Stream = CUstream_st*;  // cudaStream_t, declared without CUDA

class PeerBufferPool;

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

  // Enqueues the send of send_bytes[n] bytes to each rank n, and the receipt of receive_bytes[n]
  // bytes from it. Both buffers are ordered by rank, without gaps. A rank's bytes for itself are
  // copied. Sizes are on the host. Both ranks of a pair give the same size.
  virtual Status AllToAll(const void* send, const int64_t* send_bytes, void* receive,
                          const int64_t* receive_bytes, Stream stream) = 0;

  // Enqueues the send of the same `bytes` bytes to every rank, and the receipt of receive_bytes[n]
  // bytes from each rank n, ordered by rank, without gaps.
  virtual Status AllGather(const void* send, int64_t bytes, void* receive,
                           const int64_t* receive_bytes, Stream stream) = 0;

  // Waits on the host until all work on `stream` has ended. After the time-out it aborts, and the
  // error names the ranks that are behind, if they are known.
  virtual Status Wait(Stream stream) = 0;

  // Ends running and future calls with the error `reason`.
  virtual void Abort(const std::string& reason) = 0;

  // Buffers into which other ranks write directly (peer_buffers.h); null on all ranks if they have
  // none.
  virtual PeerBufferPool* peer_buffers() { return nullptr; }

  // Counts ids, rows or gradients of a lookup that this rank sends, by the communicator or into
  // peer buffers: bytes[n] to each rank n. A rank's bytes for itself do not count.
  void CountSent(const std::vector<int64_t>& bytes);

  // [num_ranks] the bytes counted since the communicator was made. Any thread may ask.
  std::vector<int64_t> SentBytes() const;

 protected:
  Communicator(int rank, int num_ranks)
      : rank_(rank), num_ranks_(num_ranks), sent_bytes_(num_ranks) {}

 private:
  const int rank_, num_ranks_;
  std::vector<std::atomic<int64_t>> sent_bytes_;  // [num_ranks]
};

// An all-to-all with the same number of bytes for each pair of ranks. Followed by Wait it is a
// barrier. send, receive: [num_ranks, bytes].
Status ExchangeEqual(Communicator* communicator, const void* send, void* receive, int64_t bytes,
                     Stream stream);

}  // namespace group_embedding
