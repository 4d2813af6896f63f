// Ranks of one host whose GPUs reach each other's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "exchange/transport/communicator.h"

namespace group_embedding {

// The same communicator, with peer buffers. All ranks call it together; where these cannot have
// any, it returns `communicator` as it was on all of them, and *why_not says why. Waits for the
// stream.
std::unique_ptr<Communicator> UsePeerMemory(std::unique_ptr<Communicator> communicator,
                                            double timeout_seconds, cudaStream_t stream,
                                            std::string* why_not);

}  // namespace group_embedding
