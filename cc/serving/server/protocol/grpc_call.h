// The methods of gRPC's services, a call of one, and its answer, whatever carries them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "serving/server/models/request.h"
#include "serving/server/models/status.h"
#include "serving/server/protocol/workers.h"

namespace google::protobuf {
class Descriptor;
}

namespace group_embedding::server {

struct GrpcMethod {
  enum Kind {
    kComputed,  // by a worker
    kAtOnce,    // on the thread of connections
    kWatched,   // the same; answered again whenever the answer differs, until the client leaves
  };
  Kind kind = kComputed;
  const google::protobuf::Descriptor* message = nullptr;  // the type of requests
  // The answer in gRPC's frame, given the bytes of the request's message.
  std::function<Status(const Request&, std::string_view message, std::string* answer)> answer;
};

// What all connections of a server share.
struct GrpcService {
  std::map<std::string, GrpcMethod> methods;  // by path, "/package.Service/Method"
  size_t most_message_bytes = 0;              // of a request, as read and inflated, and an answer
  size_t most_buffered_bytes = 0;             // of all messages that are not whole, or not sent
  size_t buffered_bytes = 0;                  // of the thread of connections
  double timeout_seconds = 30;                // where the client names no deadline
  InFlight in_flight;                         // calls, from `compute` to the end of their streams
};

// A call whose message is whole.
struct GrpcCall {
  int32_t stream = 0;
  const GrpcMethod* method = nullptr;
  Request request;
  std::string body;      // in its frame
  std::string encoding;  // of the body, if it is compressed
};

struct GrpcAnswer {
  Status status;
  std::string message;  // in its frame
};

// Reads the call's message, and answers it. An exception, as for want of memory, is the call's.
GrpcAnswer AnswerGrpcCall(const GrpcCall& call, size_t most_message_bytes);

}  // namespace group_embedding::server
