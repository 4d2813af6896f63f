#include "serving/server/protocol/grpc_call.h"

#include <algorithm>
#include <exception>

#include "serving/server/protocol/grpc_message.h"
#include "serving/server/protocol/message_bytes.h"

namespace group_embedding::server {
namespace {

constexpr size_t kMostBytesAtOnce = 64 << 10;
// What a message may take in memory: so many times --max-message-bytes.
constexpr size_t kMemoryOfMessages = 4, kLeastMemory = size_t{16} << 20;

// Refuses a message that would keep the thread of connections, or become much more than its bytes.
Status CheckMemory(const GrpcMethod& method, std::string_view message, size_t most_message_bytes) {
  if (method.kind != GrpcMethod::kComputed && message.size() > kMostBytesAtOnce) {
    return Status(StatusCode::RESOURCE_EXHAUSTED,
                  "expected at most " + std::to_string(kMostBytesAtOnce) + " bytes, got " +
                      std::to_string(message.size()));
  }
  const size_t most = std::max(kMemoryOfMessages * most_message_bytes, kLeastMemory);
  if (CountMemory(message, *method.message, most) <= most) return Status::OK;
  return Status(StatusCode::RESOURCE_EXHAUSTED,
                "a message of " + std::to_string(message.size()) + " bytes takes more than " +
                    std::to_string(most) +
                    " bytes of memory, which are allowed by --max-message-bytes: send large "
                    "tensors as tensor_content");
}

}  // namespace

GrpcAnswer AnswerGrpcCall(const GrpcCall& call, size_t most_message_bytes) {
  GrpcAnswer answer;
  try {
    std::string inflated;
    std::string_view message;
    answer.status =
        ReadGrpcMessage(call.body, call.encoding, most_message_bytes, &inflated, &message);
    if (answer.status.ok()) answer.status = CheckMemory(*call.method, message, most_message_bytes);
    if (answer.status.ok()) {
      answer.status = call.method->answer(call.request, message, &answer.message);
    }
  } catch (const std::exception& error) {
    answer.status =
        Status(StatusCode::INTERNAL, std::string("the request failed: ") + error.what());
  }
  if (answer.status.ok() && answer.message.size() > most_message_bytes + kGrpcFrameBytes) {
    answer.status = Status(StatusCode::RESOURCE_EXHAUSTED,
                           "the answer has " + std::to_string(answer.message.size()) +
                               " bytes, expected at most --max-message-bytes, " +
                               std::to_string(most_message_bytes));
  }
  return answer;
}

}  // namespace group_embedding::server
