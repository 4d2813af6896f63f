// What ranks tell each other before rows travel: how many rows of each table each asks of each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/fault.h"
#include "exchange/communicator.h"
#include "exchange/sharded_group.h"

namespace group_embedding {

// What one rank has to tell.
struct CountsToTell {
  const std::string& description;  // of its group (messages.h)
  int64_t num_tables;
  const int64_t* num_unique;  // on the device [num_ranks * num_tables + 1]: rows before each part
  const Fault* fault;         // on the device: the bad id that this rank met; null: nobody looked
};

struct ToldCounts {
  std::string disagreement;            // in what the ranks' groups differ; empty: in nothing
  std::vector<int64_t> asked, served;  // [num_ranks, num_tables] rows: of others; by others
  int64_t fault_rank = -1;             // the lowest that met a bad id; -1: none did
  Fault fault;                         // its
};

// All ranks call it, each with whatever group it has: where these differ, each is told so, and
// nothing else. Waits for the stream, once where tables are fewer than 250 and the groups the same.
// Throws std::runtime_error.
ToldCounts ExchangeCounts(const CountsToTell& mine, Communicator* communicator,
                          const ShardedGroup::Memory& memory, cudaStream_t stream);

}  // namespace group_embedding
