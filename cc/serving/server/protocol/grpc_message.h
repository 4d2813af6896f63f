// gRPC over HTTP/2 as text and bytes: messages in their frame, timeouts, and messages of errors.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "serving/server/models/status.h"

namespace group_embedding::server {

inline constexpr size_t kGrpcFrameBytes = 5;  // compressed or not, and four bytes of length

// Completes a frame whose message stands behind kGrpcFrameBytes zeros: writes its length.
void WriteGrpcLength(std::string* frame);

// The length that a frame names; nullopt: it is shorter than its head.
std::optional<uint32_t> GrpcLength(std::string_view frame);

// The message of a body, which is one frame. encoding: of compressed ones, "" or "identity", "gzip"
// or "deflate". INTERNAL: the body is no frame, or not one. UNIMPLEMENTED: another encoding.
// RESOURCE_EXHAUSTED: it inflates to more than `most_bytes`. The message is part of `body`, or all
// of `inflated`.
Status ReadGrpcMessage(std::string_view body, const std::string& encoding, size_t most_bytes,
                       std::string* inflated, std::string_view* message);

// The value of `grpc-timeout`, such as "200m"; nullopt: it is none.
std::optional<std::chrono::microseconds> ReadGrpcTimeout(std::string_view text);

// The value of `grpc-message`: bytes that are not printable become %XX. At most 4,000 bytes.
std::string EncodeGrpcError(std::string_view message);

}  // namespace group_embedding::server
