// Ranks that have a GPU each, through NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "exchange/transport/communicator.h"

namespace group_embedding {

// What the ranks of one communicator have in common: made by one of them, which hands it to the
// others. `error` as below.
inline constexpr int kNcclIdBytes = 128;
std::string MakeNcclId(std::string* error);

// Made by all ranks together, each on its current device. Null on an error, and `error` says which.
// `timeout_seconds`: how long Wait waits for other ranks, and this at least a minute.
std::unique_ptr<Communicator> MakeNcclCommunicator(const std::string& id, int rank, int num_ranks,
                                                   double timeout_seconds, std::string* error);

}  // namespace group_embedding
