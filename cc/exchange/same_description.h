// Whether the ranks of a communicator are about to do the same.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "exchange/communicator.h"

namespace group_embedding {

// All ranks call it, each with its description (see messages.h), on a GPU. Empty where all are the
// same; else in what the first that differs does so, or why that could not be found out: on every
// rank. Waits for the stream. on_device: gives device memory, kept until the call is over.
std::string CheckSameDescription(Communicator* communicator, const std::string& description,
                                 const std::function<void*(int64_t bytes)>& on_device,
                                 Stream stream);

}  // namespace group_embedding
