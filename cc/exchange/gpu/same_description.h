// Whether the ranks of a communicator are about to do the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exchange/gpu/sharded_group.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

// What a rank tells of its description (messages.h) to all.
struct DescriptionHeader {
  uint64_t digest;
  int64_t bytes;
};

DescriptionHeader HeaderOf(const std::string& description);

// All ranks call it with the same headers, [num_ranks], and each with its own description. Empty
// where all are the same, and then nothing is sent; else in what the first that differs does so, or
// why that could not be found out: on every rank. Waits for the stream.
std::string FindDisagreement(const std::string& description,
                             const std::vector<DescriptionHeader>& headers,
                             Communicator* communicator, const ShardedGroup::Memory& memory,
                             cudaStream_t stream);

}  // namespace group_embedding
