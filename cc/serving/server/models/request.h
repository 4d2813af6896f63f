// What a request brings besides its message, from gRPC or from REST.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "serving/server/models/gate.h"
#include "serving/server/operations/tensorflow_metrics.h"

namespace group_embedding::server {

struct Request {
  Deadline deadline = Deadline::max();
  std::function<bool()> cancelled;  // whether the client is gone; any thread; null: it stays
  Entrypoint entrypoint = Entrypoint::kGrpc;
};

// What is asked of a model. What it points to lives as long as its request.
struct Question {
  const std::string& signature;
  const std::vector<GeTensor>& inputs;
  const std::vector<const char*>& outputs;  // none: all
};

}  // namespace group_embedding::server
