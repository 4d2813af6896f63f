// The first messages of a lookup: each rank sends each owner the numbers of rows of each table that
// it requests, and, if they are few, the rows themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/fault.h"
#include "core/status.h"
#include "exchange/gpu/named_memory.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

// The input of one rank. Pointers are to device memory.
struct CountsToSend {
  const std::string& description;  // of its group (messages.h)
  int64_t num_tables;
  const int64_t* num_unique;  // [num_ranks * num_tables + 1] the number of rows before each part
  const int64_t* local_rows;  // the requested rows, part after part; null: they are not sent
  const Fault* fault;         // the first bad id of this rank; null: ids were not checked
  int64_t peer_buffer;  // the number of the peer buffer that this rank offers (PeerBufferPool)
};

struct ExchangedCounts {
  Status disagreement;                 // how the ranks' groups differ; OK: they are the same
  std::vector<int64_t> requested;      // [requester, owner, num_tables] numbers of rows
  std::vector<int64_t> asked, served;  // [num_ranks, num_tables] requested by, and from, this rank
  std::vector<int64_t> peer_buffers;   // [num_ranks] the number that each rank offers
  int64_t fault_rank = -1;             // the lowest rank with a bad id; -1: none has one
  Fault fault;                         // of that rank
  // [num_ranks] messages on the device that contain the requested rows; null on all ranks if the
  // rows of any message did not fit.
  const int64_t* messages = nullptr;
};

// All ranks call it together. If their groups differ, every rank gets a `disagreement` and nothing
// else. Waits for the stream: once if the groups are the same and have at most 4,000 parts.
ExchangedCounts ExchangeCounts(const CountsToSend& mine, Communicator* communicator,
                               const NamedMemory& memory, cudaStream_t stream);

// Enqueues the write of the rows in `counts.messages`, ordered by requesting rank, then by table.
void CollectRows(const ExchangedCounts& counts, int num_ranks, int64_t* requests,
                 cudaStream_t stream);

}  // namespace group_embedding
