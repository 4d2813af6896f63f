// What each method of gRPC answers.
#pragma once

#include <atomic>
#include <map>
#include <string>

#include "serving/server/models/models.h"
#include "serving/server/protocol/grpc_session.h"

namespace group_embedding::server {

// By path. is_serving: what the health service answers.
std::map<std::string, GrpcMethod> MakeGrpcMethods(Models& models,
                                                  const std::atomic<bool>& is_serving);

}  // namespace group_embedding::server
