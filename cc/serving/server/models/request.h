// What a request brings besides its message, from gRPC or from REST.
#pragma once

#include <functional>

#include "serving/server/models/gate.h"
#include "serving/server/operations/tensorflow_metrics.h"

namespace group_embedding::server {

struct Request {
  Deadline deadline = Deadline::max();
  std::function<bool()> cancelled;  // whether the client is gone; any thread; null: it stays
  Entrypoint entrypoint = Entrypoint::kGrpc;
};

}  // namespace group_embedding::server
