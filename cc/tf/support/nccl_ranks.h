// The communicator that the ops of this process share.
#pragma once

#include <cstdint>

extern "C" {
// sent_bytes: [num_ranks] written: what lookups have sent to each rank by the communicator of this
// id, of id_bytes bytes, or into peer buffers. An id that no op has used writes nothing.
void GroupEmbeddingNcclSentBytes(const char* id, int64_t id_bytes, int64_t* sent_bytes);
}

#if GOOGLE_CUDA

#include <memory>
#include <string>
#include <vector>

#include "exchange/transport/communicator.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {

// The attributes that name it.
class NcclRanks {
 public:
  explicit NcclRanks(tensorflow::OpKernelConstruction* context);

  // On the op's GPU. The first call of an id meets the other ranks, and ends the communicator of
  // another id, which a job had that is over. An op that uses it shares it.
  absl::Status Join(tensorflow::OpKernelContext* context,
                    std::shared_ptr<Communicator>* communicator) const;

  // What lookups have sent to each rank by the communicator of an id; empty if no op has used it.
  static std::vector<int64_t> SentBytes(const std::string& id);

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

 private:
  std::string id_;
  int rank_, num_ranks_;
  float timeout_seconds_;
  bool use_peer_memory_;
};

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
