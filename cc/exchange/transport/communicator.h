// How the ranks of a job send each other bytes.
//
// Thread safety: calls come from one thread at a time, except Abort, which any thread may call at
// any time. Order: every rank makes the same calls in the same order; which stream a call is
// enqueued on is each rank's own business, but calls on different streams still run one after the
// other. Memory is on the communicator's device (of the local one: on the stream's).
//
// Every function returns what went wrong, in one sentence; empty: nothing. After an error the
// communicator is aborted: what was enqueued ends with whatever is in memory then, later calls
// return the same error, and no rank waits longer than the time-out for one that is gone.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

struct CUstream_st;

namespace group_embedding {

using Stream = CUstream_st*;  // cudaStream_t, where there is no CUDA as well

class PeerBufferPool;

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

  // Enqueues: send_bytes[n] bytes go to rank n, and receive_bytes[n] come from it. In both buffers
  // those of rank 0 lie first, without gaps. A rank's own bytes are copied. Sizes are on the host;
  // what a rank sends to another is what that receives from it.
  virtual std::string AllToAll(const void* send, const int64_t* send_bytes, void* receive,
                               const int64_t* receive_bytes, Stream stream) = 0;

  // Waits on the host until everything that was enqueued on `stream` has ended: at most so long as
  // the time-out, then aborts and names the ranks that are behind, as far as they are known.
  virtual std::string Wait(Stream stream) = 0;

  // Ends what is under way and all calls to come, with this sentence.
  virtual void Abort(const std::string& reason) = 0;

  // Memory that all ranks write (peer_buffers.h), for what would else be copied to be sent; null on
  // all of them where they have none.
  virtual PeerBufferPool* peer_buffers() { return nullptr; }

 protected:
  Communicator(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}

 private:
  const int rank_, num_ranks_;
};

// For who has no other way to tell of an error: throws std::runtime_error, if there is one.
inline void Require(const std::string& error) {
  if (!error.empty()) throw std::runtime_error(error);
}

// The same number of bytes from each rank to each: how sizes are exchanged, and, followed by Wait,
// a barrier. send, receive: [num_ranks, bytes].
std::string ExchangeEqual(Communicator* communicator, const void* send, void* receive,
                          int64_t bytes, Stream stream);

}  // namespace group_embedding
