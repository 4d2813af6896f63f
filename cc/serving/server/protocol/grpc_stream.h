// One stream of a GrpcSession: a call, from its head to its trailers.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "serving/server/protocol/grpc_session.h"

namespace group_embedding::server {

inline constexpr uint32_t kMostGrpcHeadBytes = 16 << 10;

struct GrpcSession::Stream {
  Stream(int32_t id_) : id(id_) {}

  const int32_t id;
  State state = State::kHead;
  Clock::time_point since = Clock::now();  // of the state, or of the last byte of an answer
  // The head.
  std::string verb, path, type, timeout, encoding;
  size_t head_bytes = 0;
  // The request.
  const GrpcMethod* method = nullptr;
  Request request;
  std::string body;
  bool is_whole = false;  // the client has ended it
  const std::shared_ptr<std::atomic<bool>> is_gone = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<void> in_flight;
  // The answer.
  Status status;
  std::string answer;
  size_t sent = 0;
  size_t buffered = 0;  // bytes that count for the service
};

}  // namespace group_embedding::server
