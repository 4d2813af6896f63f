// Ranks of one host whose GPUs reach each other's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "core/status.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

// Adds peer buffers to a communicator. All ranks call it together. If any rank cannot have them,
// all ranks get `communicator` back unchanged, and *why_not says why. Waits for the stream.
std::unique_ptr<Communicator> UsePeerMemory(std::unique_ptr<Communicator> communicator,
                                            double timeout_seconds, cudaStream_t stream,
                                            Status* why_not);

}  // namespace group_embedding
