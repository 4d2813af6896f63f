// The communicator of a job of one rank. Without a GPU it works on host memory, and calls run at
// once.
#pragma once

#include <memory>

#include "exchange/transport/communicator.h"

namespace group_embedding {

std::unique_ptr<Communicator> MakeLocalCommunicator();

}  // namespace group_embedding
