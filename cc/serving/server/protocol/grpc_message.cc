#include "serving/server/protocol/grpc_message.h"

#include <algorithm>

#include "serving/server/protocol/gzip.h"

namespace group_embedding::server {
namespace {

constexpr size_t kMostTimeoutDigits = 8;
constexpr size_t kMostErrorBytes = 4000;  // clients take heads of 8 KB

std::optional<int64_t> MicrosecondsOf(char unit) {
  switch (unit) {
    case 'H':
      return 3'600'000'000;
    case 'M':
      return 60'000'000;
    case 'S':
      return 1'000'000;
    case 'm':
      return 1'000;
    case 'u':
      return 1;
    default:
      return std::nullopt;
  }
}

}  // namespace

void WriteGrpcLength(std::string* frame) {
  const size_t length = frame->size() - kGrpcFrameBytes;
  for (size_t i = 1; i < kGrpcFrameBytes; ++i) {
    (*frame)[i] = static_cast<char>(length >> 8 * (kGrpcFrameBytes - 1 - i) & 0xff);
  }
}

std::optional<uint32_t> GrpcLength(std::string_view frame) {
  if (frame.size() < kGrpcFrameBytes) return std::nullopt;
  uint32_t length = 0;
  for (size_t i = 1; i < kGrpcFrameBytes; ++i) {
    length = length << 8 | static_cast<unsigned char>(frame[i]);
  }
  return length;
}

Status ReadGrpcMessage(std::string_view body, const std::string& encoding, size_t most_bytes,
                       std::string* inflated, std::string_view* message) {
  const std::optional<uint32_t> length = GrpcLength(body);
  if (!length || body.size() - kGrpcFrameBytes != *length || (body[0] & ~1) != 0) {
    return Status(StatusCode::INTERNAL, "expected one message in gRPC's frame, got " +
                                            std::to_string(body.size()) + " bytes");
  }
  const bool is_compressed = body[0] != 0;
  body.remove_prefix(kGrpcFrameBytes);
  if (!is_compressed) {
    *message = body;
    return Status::OK;
  }
  if (encoding != "gzip" && encoding != "deflate") {
    return Status(
        StatusCode::UNIMPLEMENTED,
        "grpc-encoding: expected identity, gzip or deflate, got '" + encoding.substr(0, 50) + "'");
  }
  const Inflated result = Inflate(std::string(body), most_bytes, inflated);
  *message = *inflated;
  if (result == Inflated::kDone) return Status::OK;
  if (result == Inflated::kMalformed) {
    return Status(StatusCode::INTERNAL, "the message is no " + encoding);
  }
  return Status(StatusCode::RESOURCE_EXHAUSTED,
                "the message inflates to more than --max-message-bytes");
}

std::optional<std::chrono::microseconds> ReadGrpcTimeout(std::string_view text) {
  if (text.size() < 2 || text.size() > kMostTimeoutDigits + 1) return std::nullopt;
  int64_t number = 0;
  for (const char c : text.substr(0, text.size() - 1)) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + (c - '0');
  }
  if (text.back() == 'n') return std::chrono::microseconds(number / 1000);
  const std::optional<int64_t> unit = MicrosecondsOf(text.back());
  if (!unit) return std::nullopt;
  return std::chrono::microseconds(number * *unit);
}

std::string EncodeGrpcError(std::string_view message) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string text;
  for (const char c : message) {
    if (text.size() + 3 > kMostErrorBytes) break;
    if (c >= ' ' && c <= '~' && c != '%') {
      text += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      text += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text;
}

}  // namespace group_embedding::server
