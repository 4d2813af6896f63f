// The communicator of ranks with a GPU each, through NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

// The id that ranks share to form one communicator. One rank makes it and sends it to the others.
// On an error returns "", and *error says why.
inline constexpr int kNcclIdBytes = 128;
std::string MakeNcclId(Status* error);

// The PCI bus id of a GPU, which tells it from the others of its host. On an error returns "", and
// *error says why.
std::string PciBusIdOf(int device, Status* error);

// All ranks call it together, each on its current device. Null on an error; *error says which.
// timeout_seconds: how long Wait waits for other ranks. This function waits at least a minute.
std::unique_ptr<Communicator> MakeNcclCommunicator(const std::string& id, int rank, int num_ranks,
                                                   double timeout_seconds, Status* error);

}  // namespace group_embedding
