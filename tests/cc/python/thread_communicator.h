// The communicator of ranks that are threads of this process and share its GPU: tests of several
// ranks on a machine with one.
#pragma once

#if GROUP_EMBEDDING_CUDA

#include <memory>
#include <vector>

#include "exchange/transport/communicator.h"

namespace group_embedding {

// One for each rank's thread. A call waits for the stream and for the other ranks, at most so long.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int num_ranks,
                                                                   double timeout_seconds);

}  // namespace group_embedding

#endif
