// The calls of a GrpcSession, each on its stream: heads, messages, answers.
#include <algorithm>
#include <cstring>

#include "serving/server/protocol/grpc_message.h"
#include "serving/server/protocol/grpc_stream.h"

namespace group_embedding::server {
namespace {

constexpr size_t kMostPathBytes = 200;
constexpr size_t kMostReserved = 64;  // times what has come of a message
constexpr char kType[] = "application/grpc", kEncodings[] = "identity,deflate,gzip";

nghttp2_nv Field(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

}  // namespace

void GrpcSession::OnField(Stream& stream, std::string_view name, std::string_view value) {
  constexpr size_t kOfAField = 32;  // by which HTTP/2 counts
  stream.head_bytes += name.size() + value.size() + kOfAField;
  if (stream.head_bytes > kMostGrpcHeadBytes) return;
  if (name == ":method") stream.verb = value;
  if (name == ":path") stream.path = value;
  if (name == "content-type") stream.type = value;
  if (name == "grpc-timeout") stream.timeout = value;
  if (name == "grpc-encoding") stream.encoding = value;
}

void GrpcSession::OnHead(Stream& stream) {
  stream.state = State::kBody;
  if (stream.head_bytes > kMostGrpcHeadBytes) {
    return SubmitError(stream,
                       Status(StatusCode::RESOURCE_EXHAUSTED,
                              "expected metadata of at most " + std::to_string(kMostGrpcHeadBytes) +
                                  " bytes, got " + std::to_string(stream.head_bytes)));
  }
  if (stream.verb != "POST") return SubmitPlain(stream, 405);
  if (stream.type.rfind(kType, 0) != 0) return SubmitPlain(stream, 415);
  const auto found = service_.methods.find(stream.path);
  if (found == service_.methods.end()) {
    return SubmitError(stream, Status(StatusCode::UNIMPLEMENTED,
                                      "unknown method " + stream.path.substr(0, kMostPathBytes)));
  }
  stream.method = &found->second;
  std::chrono::microseconds timeout(static_cast<int64_t>(service_.timeout_seconds * 1e6));
  if (!stream.timeout.empty()) {
    const auto read = ReadGrpcTimeout(stream.timeout);
    if (!read) {
      return SubmitError(stream,
                         Status(StatusCode::INVALID_ARGUMENT,
                                "grpc-timeout: expected at most 8 digits and a unit, got '" +
                                    stream.timeout.substr(0, 50) + "'"));
    }
    timeout = *read;
  }
  stream.request.deadline = std::chrono::system_clock::now() + timeout;
  stream.request.cancelled = [is_gone = stream.is_gone] { return is_gone->load(); };
}

// Counts bytes that are kept. False: the server has no memory left for them.
bool GrpcSession::Buffer(Stream& stream, size_t bytes) {
  if (service_.buffered_bytes + bytes > service_.most_buffered_bytes) return false;
  stream.buffered += bytes;
  service_.buffered_bytes += bytes;
  return true;
}

void GrpcSession::Unbuffer(Stream& stream) {
  service_.buffered_bytes -= stream.buffered;
  stream.buffered = 0;
}

void GrpcSession::OnData(Stream& stream, std::string_view bytes) {
  if (stream.state != State::kBody) return;
  if (!Buffer(stream, bytes.size())) {
    return SubmitError(stream, Status(StatusCode::RESOURCE_EXHAUSTED,
                                      "the messages that are sent to the server are too large "
                                      "together: send fewer at a time"));
  }
  stream.body += bytes;
  const std::optional<uint32_t> length = GrpcLength(stream.body);
  const size_t most = service_.most_message_bytes;
  if (length && *length > most) {
    return SubmitError(stream, Status(StatusCode::RESOURCE_EXHAUSTED,
                                      "the message has " + std::to_string(*length) +
                                          " bytes, expected at most --max-message-bytes, " +
                                          std::to_string(most)));
  }
  if (length && stream.body.size() > kGrpcFrameBytes + *length) {
    return SubmitError(stream, Status(StatusCode::UNIMPLEMENTED, "expected one message"));
  }
  // Memory for the rest, so that it is not copied as the body grows; no head alone gets much of it.
  if (length && stream.body.size() == bytes.size()) {
    stream.body.reserve(std::min(kGrpcFrameBytes + *length, kMostReserved * bytes.size()));
  }
}

void GrpcSession::OnRequestEnd(Stream& stream) {
  stream.is_whole = true;
  if (stream.state == State::kBody) Start(stream);
}

void GrpcSession::Start(Stream& stream) {
  stream.since = Clock::now();
  GrpcCall call{stream.id, stream.method, stream.request, std::move(stream.body), stream.encoding};
  stream.body = {};
  if (stream.method->kind == GrpcMethod::kAtOnce) {
    return Finish(stream, AnswerGrpcCall(call, service_.most_message_bytes));
  }
  if (stream.method->kind == GrpcMethod::kWatched) {
    stream.body = std::move(call.body);
    return Watch(stream);
  }
  stream.state = State::kComputing;
  if (!compute_(std::move(call))) {
    return SubmitError(stream, Status(StatusCode::RESOURCE_EXHAUSTED,
                                      "the server has more requests than may wait: send fewer at "
                                      "a time, or start it with more --threads or --queue"));
  }
  ++computing_;
  service_.in_flight.Add(1);
  stream.in_flight =
      std::shared_ptr<void>(nullptr, [service = &service_](void*) { service->in_flight.Add(-1); });
}

void GrpcSession::Answer(int32_t id, GrpcAnswer answer) {
  --computing_;
  if (Stream* stream = Find(id)) Finish(*stream, std::move(answer));
}

void GrpcSession::Finish(Stream& stream, GrpcAnswer answer) {
  Unbuffer(stream);
  if (answer.status.ok() && !Buffer(stream, answer.message.size())) {
    answer.status = Status(StatusCode::RESOURCE_EXHAUSTED,
                           "the answers that clients have not read are too large together");
  }
  if (!answer.status.ok()) return SubmitError(stream, answer.status);
  stream.state = State::kAnswering;
  stream.since = Clock::now();
  stream.answer = std::move(answer.message);
  SubmitData(stream);
}

void GrpcSession::SubmitData(Stream& stream) {
  const nghttp2_nv head[] = {Field(":status", "200"), Field("content-type", kType),
                             Field("grpc-accept-encoding", kEncodings)};
  nghttp2_data_provider answer{};
  answer.source.ptr = &stream;
  answer.read_callback = [](nghttp2_session*, int32_t, uint8_t* to, size_t most, uint32_t* flags,
                            nghttp2_data_source* source, void* self) {
    return static_cast<GrpcSession*>(self)->Read(*static_cast<Stream*>(source->ptr), to, most,
                                                 flags);
  };
  nghttp2_submit_response(session_, stream.id, head, std::size(head), &answer);
}

ssize_t GrpcSession::Read(Stream& stream, uint8_t* to, size_t most, uint32_t* flags) {
  const size_t count = std::min(most, stream.answer.size() - stream.sent);
  std::memcpy(to, stream.answer.data() + stream.sent, count);
  stream.sent += count;
  stream.since = Clock::now();
  if (stream.sent < stream.answer.size()) return static_cast<ssize_t>(count);
  if (stream.state == State::kWatching) {
    return count > 0 ? static_cast<ssize_t>(count) : NGHTTP2_ERR_DEFERRED;
  }
  *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
  const std::string code = std::to_string(static_cast<int>(stream.status.error_code()));
  const std::string message = EncodeGrpcError(stream.status.error_message());
  const nghttp2_nv trailer[] = {Field("grpc-status", code), Field("grpc-message", message)};
  nghttp2_submit_trailer(session_, stream.id, trailer, message.empty() ? 1 : 2);
  return static_cast<ssize_t>(count);
}

// An answer that is a head alone.
void GrpcSession::SubmitError(Stream& stream, const Status& status) {
  Unbuffer(stream);
  stream.state = State::kAnswering;
  stream.since = Clock::now();
  stream.body = {};
  const std::string code = std::to_string(static_cast<int>(status.error_code()));
  const std::string message = EncodeGrpcError(status.error_message());
  const nghttp2_nv head[] = {Field(":status", "200"), Field("content-type", kType),
                             Field("grpc-status", code), Field("grpc-message", message),
                             Field("grpc-accept-encoding", kEncodings)};
  nghttp2_submit_response(session_, stream.id, head, std::size(head), nullptr);
}

// An answer to what is not gRPC.
void GrpcSession::SubmitPlain(Stream& stream, int status) {
  stream.state = State::kAnswering;
  const std::string text = std::to_string(status);
  const nghttp2_nv head[] = {Field(":status", text)};
  nghttp2_submit_response(session_, stream.id, head, std::size(head), nullptr);
}

void GrpcSession::Watch(Stream& stream) {
  const GrpcCall call{stream.id, stream.method, stream.request, stream.body, stream.encoding};
  GrpcAnswer answer = AnswerGrpcCall(call, service_.most_message_bytes);
  if (!answer.status.ok()) return SubmitError(stream, answer.status);
  const bool is_first = stream.state != State::kWatching;
  if (answer.message == stream.answer || stream.sent < stream.answer.size()) return;
  stream.state = State::kWatching;
  stream.answer = std::move(answer.message);
  stream.sent = 0;
  is_first ? SubmitData(stream)
           : static_cast<void>(nghttp2_session_resume_data(session_, stream.id));
}

void GrpcSession::LookAtWatches() {
  for (const auto& entry : streams_) {
    if (entry.second->state == State::kWatching) Watch(*entry.second);
  }
}

}  // namespace group_embedding::server
