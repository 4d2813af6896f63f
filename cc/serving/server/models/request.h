// What a request brings besides its message, from gRPC or from REST.
#pragma once

#include <functional>

#include "serving/server/models/gate.h"

namespace group_embedding::server {

struct Request {
  Deadline deadline;
  std::function<bool()> cancelled;
};

}  // namespace group_embedding::server
