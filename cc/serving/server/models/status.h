// What a call comes to: a code of gRPC's, and a sentence for people.
#pragma once

#include <string>
#include <utility>

namespace group_embedding::server {

// gRPC's codes, which TensorFlow's are.
enum class StatusCode {
  OK = 0,
  CANCELLED = 1,
  UNKNOWN = 2,
  INVALID_ARGUMENT = 3,
  DEADLINE_EXCEEDED = 4,
  NOT_FOUND = 5,
  ALREADY_EXISTS = 6,
  PERMISSION_DENIED = 7,
  RESOURCE_EXHAUSTED = 8,
  FAILED_PRECONDITION = 9,
  ABORTED = 10,
  OUT_OF_RANGE = 11,
  UNIMPLEMENTED = 12,
  INTERNAL = 13,
  UNAVAILABLE = 14,
  DATA_LOSS = 15,
  UNAUTHENTICATED = 16,
};

class Status {
 public:
  static const Status OK;

  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::OK; }
  StatusCode error_code() const { return code_; }
  const std::string& error_message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::OK;
  std::string message_;
};

inline const Status Status::OK;

}  // namespace group_embedding::server
