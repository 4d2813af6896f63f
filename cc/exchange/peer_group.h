// A sharded group whose ranks read each other's memory: rows where the tables are, gradients where
// they were reduced. The host waits for nothing in Lookup; in Update, for the counts that Lookup
// found before it fetched rows, which it did long before.
#pragma once

#include "exchange/fetch_rows.h"
#include "exchange/peer_memory.h"
#include "exchange/sharded_group.h"

namespace group_embedding {

// What a group needs in the PeerMemory of each rank, beside its tables.
struct PeerRoom {
  int64_t counts, local_rows, gradients;   // where they begin: two of each, but for gradients
  int64_t counts_bytes, local_rows_bytes;  // of one
  int64_t bytes;                           // in all

  // For batches of at most `max_ids` ids.
  PeerRoom(const Group& group, int num_ranks, int64_t max_ids);
};

class PeerGroup : public ShardedGroup {
 public:
  // table_offsets: [num_tables] where the shards begin in the PeerMemory of each rank; room_offset:
  // where PeerRoom::bytes are, which are this group's alone until all ranks are done with it. Both,
  // and max_ids, are the same on all ranks. `ranks` must live as long.
  PeerGroup(const Group& group, PeerRanks* ranks, const std::vector<int64_t>& table_offsets,
            int64_t room_offset, int64_t max_ids, Memory memory);
  ~PeerGroup() override;

  void Lookup(Fault* fault, cudaStream_t stream) override;
  void Update(const group_embedding::Update& update, cudaStream_t stream) override;

  // Bytes of rows that the last Lookup read from other ranks, or, as gradients, the last Update.
  int64_t fetched_bytes() const;
  int64_t read_gradient_bytes() const;

 private:
  template <typename T>
  T* InRoom(int rank, int64_t offset) const {
    return reinterpret_cast<T*>(ranks_->data(rank) + room_offset_ + offset);
  }
  int64_t* CountsOf(int rank) const {
    return InRoom<int64_t>(rank, room_.counts + turn_ * room_.counts_bytes);
  }
  int64_t* LocalRowsOf(int rank) const {
    return InRoom<int64_t>(rank, room_.local_rows + turn_ * room_.local_rows_bytes);
  }
  void GatherCounts(cudaStream_t stream);
  std::vector<int64_t> NumUniqueOf(int rank) const;
  std::vector<int64_t> CountsFrom(const std::vector<int64_t>& num_unique) const;

  PeerRanks* const ranks_;
  const PeerRoom room_;
  const int64_t room_offset_, max_ids_;
  std::vector<PartSource> sources_;
  int turn_ = 0;                    // of two: peers may still read what the last Lookup left
  int64_t* host_counts_ = nullptr;  // page-locked [num_ranks, num_parts + 1]
  cudaStream_t side_stream_ = nullptr;
  cudaEvent_t counts_are_here_ = nullptr, parts_are_placed_ = nullptr,
              places_are_written_ = nullptr;
  std::vector<std::vector<int64_t>> num_unique_;  // per rank, of the last Update
};

}  // namespace group_embedding
