// Memory of one size on the GPU of each rank of a host, which all of them read and write in place,
// over NVLink.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/transport/communicator.h"

namespace group_embedding {

class PeerMemory {
 public:
  // All ranks call it together, each on its current device; waits for the stream. Null on all of
  // them where one has no such memory, or cannot reach another's, and *why_not says so. Throws
  // std::runtime_error where the communicator fails. Zeroed.
  static std::unique_ptr<PeerMemory> Make(Communicator* communicator, int64_t bytes,
                                          cudaStream_t stream, std::string* why_not);
  // What this rank has of it another PeerMemory may get: CUDA forbids to free what a peer may have
  // open.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int64_t bytes() const { return bytes_; }
  char* data(int rank) const { return data_[rank]; }  // as this rank sees that of another

 private:
  PeerMemory(int rank, int num_ranks, int64_t bytes)
      : rank_(rank), bytes_(bytes), data_(num_ranks, nullptr) {}

  const int rank_;
  const int64_t bytes_;
  std::vector<char*> data_;
};

}  // namespace group_embedding
