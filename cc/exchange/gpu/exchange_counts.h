// What ranks tell each other before rows travel: how many rows of each table each asks of each,
// and, where they are few, which.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/fault.h"
#include "exchange/gpu/sharded_group.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

// What one rank has to tell.
struct CountsToTell {
  const std::string& description;  // of its group (messages.h)
  int64_t num_tables;
  const int64_t* num_unique;  // on the device [num_ranks * num_tables + 1]: rows before each part
  const int64_t* local_rows;  // on the device: those rows, part after part
  const Fault* fault;         // on the device: the bad id that this rank met; null: nobody looked
  int64_t peer_buffer;        // of PeerBufferPool: the number of the one that this rank offers
};

struct ToldCounts {
  std::string disagreement;            // in what the ranks' groups differ; empty: in nothing
  std::vector<int64_t> counts;         // [asker, owner, num_tables] rows that ranks ask for
  std::vector<int64_t> asked, served;  // [num_ranks, num_tables] of these: by this rank; of it
  std::vector<int64_t> peer_buffers;   // [num_ranks] what each offers
  int64_t fault_rank = -1;             // the lowest that met a bad id; -1: none did
  Fault fault;                         // its
  // Where the rows that others ask for came with their counts, [num_ranks] messages on the device;
  // null on all ranks where some rank asks another for more than a message has space for.
  const int64_t* messages = nullptr;
};

// All ranks call it, each with whatever group it has: where these differ, each is told so, and
// nothing else. Waits for the stream, once where there are at most 4,000 parts and the groups are
// the same.
// Throws std::runtime_error.
ToldCounts ExchangeCounts(const CountsToTell& mine, Communicator* communicator,
                          const ShardedGroup::Memory& memory, cudaStream_t stream);

// Enqueues the write of the rows in `told.messages`, rank after rank and table after table.
void CollectRows(const ToldCounts& told, int num_ranks, int64_t* requests, cudaStream_t stream);

}  // namespace group_embedding
