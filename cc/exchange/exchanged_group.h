// A sharded group whose ranks send each other rows and gradients through a communicator.
#pragma once

#include "exchange/communicator.h"
#include "exchange/sharded_group.h"

namespace group_embedding {

// Lookup waits for the stream once, to learn how much comes; Update does not.
class ExchangedGroup : public ShardedGroup {
 public:
  // `communicator` must live as long.
  ExchangedGroup(const Group& group, Communicator* communicator, Allocate allocate);
  ~ExchangedGroup() override;

  void Lookup(Fault* fault, cudaStream_t stream) override;
  void Update(const group_embedding::Update& update, cudaStream_t stream) override;

  // Bytes that the last step sent to other ranks: ids and rows forward, gradients backward.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  void ExchangeCounts(cudaStream_t stream);
  const char* LookUpRequests(const std::vector<int64_t>& offsets, cudaStream_t stream);
  void AllToAll(const void* send, const std::vector<int64_t>& send_bytes, void* receive,
                const std::vector<int64_t>& receive_bytes, cudaStream_t stream);
  // Sums per rank of what a part of each rank takes.
  std::vector<int64_t> BytesOfRanks(const std::vector<int64_t>& offsets) const;
  std::vector<int64_t> RowsOfRanks(const std::vector<int64_t>& counts) const;

  Communicator* const communicator_;
  std::vector<int64_t> asked_, served_;  // [num_parts] rows: of others by this rank; by each of it
  int64_t* requests_ = nullptr;          // rows that ranks ask for, rank after rank
  int64_t* host_counts_ = nullptr;       // page-locked [2, num_parts]
  int64_t sent_bytes_ = 0;
};

}  // namespace group_embedding
