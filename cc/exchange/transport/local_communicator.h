// One rank, which is all there are. Without a GPU, memory is the host's and calls run at once.
#pragma once

#include <memory>

#include "exchange/transport/communicator.h"

namespace group_embedding {

std::unique_ptr<Communicator> MakeLocalCommunicator();

}  // namespace group_embedding
