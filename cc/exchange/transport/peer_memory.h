// Memory of one size on the GPU of each rank of a host, which all ranks read and write directly,
// over NVLink.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

class PeerMemory {
 public:
  // Allocates zeroed memory. All ranks call it together, each on its current device; waits for the
  // stream. Null on all ranks if one has too little memory or cannot reach another's; *why_not says
  // which. Throws std::runtime_error if the communicator fails.
  static std::unique_ptr<PeerMemory> Make(Communicator* communicator, int64_t bytes,
                                          cudaStream_t stream, Status* why_not);
  // Keeps this rank's memory for a later PeerMemory: CUDA forbids freeing memory that a peer may
  // have open.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int64_t bytes() const { return bytes_; }
  char* data(int rank) const { return data_[rank]; }  // in this rank's address space

 private:
  PeerMemory(int rank, int num_ranks, int64_t bytes)
      : rank_(rank), bytes_(bytes), data_(num_ranks, nullptr) {}

  const int rank_;
  const int64_t bytes_;
  std::vector<char*> data_;
};

}  // namespace group_embedding
