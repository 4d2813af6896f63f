// A session whose runs end, between two ops, once nobody waits for their request any more.
#pragma once

#include <memory>

#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"

namespace group_embedding {

// As tensorflow::NewSession. Ops of a run on the CPU are not begun after their ServedRequest is
// over; the run then fails. TensorFlow itself asks no run whether it goes on: the CPU's device is
// one that does.
absl::Status MakeInterruptibleSession(const tensorflow::SessionOptions& options,
                                      std::unique_ptr<tensorflow::Session>* session);

}  // namespace group_embedding
