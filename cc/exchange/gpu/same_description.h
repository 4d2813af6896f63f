// A check that all ranks of a communicator are about to run the same lookup.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "exchange/gpu/named_memory.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

// The digest and length of a rank's description (messages.h), which the rank sends to all.
struct DescriptionHeader {
  uint64_t digest;
  int64_t bytes;
};

DescriptionHeader HeaderOf(const std::string& description);

// All ranks call it together, each with its own description and with the same headers, [num_ranks].
// If all digests are equal it sends nothing and returns "". Otherwise the ranks exchange their
// descriptions, and each returns how its own differs from the first different one, or why the
// exchange failed. Waits for the stream in that case.
Status FindDisagreement(const std::string& description,
                        const std::vector<DescriptionHeader>& headers, Communicator* communicator,
                        const NamedMemory& memory, cudaStream_t stream);

}  // namespace group_embedding
