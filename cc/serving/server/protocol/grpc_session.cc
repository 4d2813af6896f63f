#include "serving/server/protocol/grpc_session.h"

#include <algorithm>
#include <cstring>

#include "serving/server/protocol/grpc_message.h"

namespace group_embedding::server {
namespace {

using std::chrono::seconds;

constexpr uint32_t kMostStreams = 1024, kMostHeadBytes = 16 << 10, kWindowBytes = 1 << 20;
constexpr int32_t kConnectionWindowBytes = 4 << 20;
constexpr size_t kMostPathBytes = 200;
constexpr size_t kMostRoom = 64;  // times what has come of a message
// The longest time of a head; a message; an answer, since its last byte was sent; a connection
// without calls; its age, after which clients connect anew; and the time of its last calls then.
constexpr seconds kHead(10), kBody(30), kAnswer(30), kIdle(600), kAge(3600), kGrace(60);
// Calls that end by a reset, and frames that bring nothing: so many, and so many a second.
constexpr double kMostResets = 10'000, kResetsPerSecond = 1000;
constexpr double kMostControls = 1000, kControlsPerSecond = 100;
constexpr char kType[] = "application/grpc", kEncodings[] = "identity,deflate,gzip";

nghttp2_nv Field(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

struct Options {
  Options() {
    nghttp2_option_new(&option);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_stream_reset_rate_limit(option, static_cast<uint64_t>(kMostResets),
                                               static_cast<uint64_t>(kResetsPerSecond));
  }
  ~Options() { nghttp2_option_del(option); }
  nghttp2_option* option = nullptr;
};

}  // namespace

GrpcAnswer AnswerGrpcCall(const GrpcCall& call, size_t most_message_bytes) {
  GrpcAnswer answer;
  try {
    std::string inflated;
    std::string_view message;
    answer.status =
        ReadGrpcMessage(call.body, call.encoding, most_message_bytes, &inflated, &message);
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

GrpcSession::GrpcSession(GrpcService& service, Compute compute)
    : service_(service),
      compute_(std::move(compute)),
      resets_{kMostResets, kResetsPerSecond},
      controls_{kMostControls, kControlsPerSecond} {
  static nghttp2_session_callbacks* const callbacks = MakeCallbacks();
  static const Options options;
  nghttp2_session_server_new2(&session_, callbacks, this, options.option);
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, kMostStreams},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMostHeadBytes},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindowBytes},
  };
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindowBytes);
}

GrpcSession::~GrpcSession() {
  Abandon();
  nghttp2_session_del(session_);
}

void GrpcSession::Abandon() {
  for (const auto& entry : streams_) {
    *entry.second->is_gone = true;
    Unbuffer(*entry.second);
  }
  streams_.clear();
  ended_calls_.clear();
}

nghttp2_session_callbacks* GrpcSession::MakeCallbacks() {
  using Session = nghttp2_session;
  using Frame = nghttp2_frame;
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_begin_headers_callback(
      callbacks, [](Session*, const Frame* frame, void* self) {
        return static_cast<GrpcSession*>(self)->OnHeadBegins(*frame);
      });
  nghttp2_session_callbacks_set_on_header_callback(
      callbacks, [](Session*, const Frame* frame, const uint8_t* name, size_t name_bytes,
                    const uint8_t* value, size_t value_bytes, uint8_t, void* self) {
        auto* session = static_cast<GrpcSession*>(self);
        Stream* stream = session->Find(frame->hd.stream_id);
        if (stream == nullptr || stream->state != State::kHead) return 0;  // or it is a trailer
        session->OnField(*stream, {reinterpret_cast<const char*>(name), name_bytes},
                         {reinterpret_cast<const char*>(value), value_bytes});
        return 0;
      });
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
      callbacks, [](Session*, uint8_t, int32_t id, const uint8_t* data, size_t bytes, void* self) {
        auto* session = static_cast<GrpcSession*>(self);
        Stream* stream = session->Find(id);
        if (stream != nullptr)
          session->OnData(*stream, {reinterpret_cast<const char*>(data), bytes});
        return 0;
      });
  nghttp2_session_callbacks_set_on_frame_recv_callback(
      callbacks, [](Session*, const Frame* frame, void* self) {
        return static_cast<GrpcSession*>(self)->OnFrame(*frame);
      });
  nghttp2_session_callbacks_set_on_frame_send_callback(
      callbacks, [](Session*, const Frame* frame, void* self) {
        static_cast<GrpcSession*>(self)->OnFrameSent(*frame);
        return 0;
      });
  nghttp2_session_callbacks_set_on_stream_close_callback(
      callbacks, [](Session*, int32_t id, uint32_t error, void* self) {
        return static_cast<GrpcSession*>(self)->OnStreamEnds(id, error);
      });
  return callbacks;
}

bool GrpcSession::Receive(std::string_view bytes) {
  if (is_bad_) return false;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (nghttp2_session_mem_recv(session_, data, bytes.size()) < 0) is_bad_ = true;
  return !is_bad_ && nghttp2_session_want_read(session_) != 0;
}

bool GrpcSession::Send(std::string* bytes, size_t most) {
  while (bytes->size() < most) {
    const uint8_t* data = nullptr;
    const ssize_t count = nghttp2_session_mem_send(session_, &data);
    if (count < 0) is_bad_ = true;
    if (count <= 0) break;
    bytes->append(reinterpret_cast<const char*>(data), static_cast<size_t>(count));
  }
  if (nghttp2_session_want_write(session_) != 0) return true;
  return !is_bad_ && nghttp2_session_want_read(session_) != 0;
}

GrpcSession::Stream* GrpcSession::Find(int32_t id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second.get();
}

int GrpcSession::OnHeadBegins(const nghttp2_frame& frame) {
  if (frame.hd.type != NGHTTP2_HEADERS || frame.headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  const int32_t id = frame.hd.stream_id;
  has_had_calls_ = true;
  // Calls that were reset while they are computed count, too.
  if (computing_ >= static_cast<int>(kMostStreams)) {
    nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, NGHTTP2_REFUSED_STREAM);
    return 0;
  }
  streams_[id] = std::make_unique<Stream>(id);
  return 0;
}

void GrpcSession::OnField(Stream& stream, std::string_view name, std::string_view value) {
  constexpr size_t kOfAField = 32;  // by which HTTP/2 counts
  stream.head_bytes += name.size() + value.size() + kOfAField;
  if (stream.head_bytes > kMostHeadBytes) return;
  if (name == ":method") stream.verb = value;
  if (name == ":path") stream.path = value;
  if (name == "content-type") stream.type = value;
  if (name == "grpc-timeout") stream.timeout = value;
  if (name == "grpc-encoding") stream.encoding = value;
}

int GrpcSession::OnFrame(const nghttp2_frame& frame) {
  const bool is_data = frame.hd.type == NGHTTP2_DATA;
  if (frame.hd.type == NGHTTP2_SETTINGS) has_greeted_ = true;
  Stream* stream = Find(frame.hd.stream_id);
  if (frame.hd.type == NGHTTP2_HEADERS && stream != nullptr && stream->state == State::kHead) {
    OnHead(*stream);
  }
  const bool ends = (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if ((is_data || frame.hd.type == NGHTTP2_HEADERS) && ends && stream != nullptr) {
    OnRequestEnd(*stream);
    return 0;
  }
  const bool is_empty_data = is_data && frame.hd.length == 0;
  const bool is_control = frame.hd.type == NGHTTP2_PING || frame.hd.type == NGHTTP2_SETTINGS ||
                          frame.hd.type == NGHTTP2_PRIORITY;
  return is_empty_data || is_control ? OnControlFrame() : 0;
}

int GrpcSession::OnControlFrame() {
  if (controls_.Take()) return 0;
  is_bad_ = true;
  return nghttp2_session_terminate_session(session_, NGHTTP2_ENHANCE_YOUR_CALM);
}

void GrpcSession::OnHead(Stream& stream) {
  stream.state = State::kBody;
  if (stream.head_bytes > kMostHeadBytes) {
    return SubmitError(stream,
                       Status(StatusCode::RESOURCE_EXHAUSTED,
                              "expected metadata of at most " + std::to_string(kMostHeadBytes) +
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
  // Room for the rest, so that it is not copied as the body grows; no head alone gets much of it.
  if (length && stream.body.size() == bytes.size()) {
    stream.body.reserve(std::min(kGrpcFrameBytes + *length, kMostRoom * bytes.size()));
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

// A client that has its answer before it has sent all of its request is to send no more.
void GrpcSession::OnFrameSent(const nghttp2_frame& frame) {
  if (frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) return;
  if ((frame.hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return;
  const Stream* stream = Find(frame.hd.stream_id);
  if (stream == nullptr || stream->is_whole) return;
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_NO_ERROR);
}

int GrpcSession::OnStreamEnds(int32_t id, uint32_t error) {
  if (Stream* stream = Find(id)) {
    *stream->is_gone = true;
    Unbuffer(*stream);
    if (stream->in_flight != nullptr) ended_calls_.push_back(std::move(stream->in_flight));
    streams_.erase(id);
  }
  if (streams_.empty()) idle_since_ = Clock::now();
  if (error == NGHTTP2_NO_ERROR || resets_.Take()) return 0;
  is_bad_ = true;
  return nghttp2_session_terminate_session(session_, NGHTTP2_ENHANCE_YOUR_CALM);
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

void GrpcSession::Drain() {
  if (drains_since_ != Clock::time_point::max()) return;
  drains_since_ = Clock::now();
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                        nghttp2_session_get_last_proc_stream_id(session_), NGHTTP2_NO_ERROR,
                        nullptr, 0);
  for (const auto& entry : streams_) {
    Stream& stream = *entry.second;
    if (stream.state != State::kWatching) continue;
    stream.state = State::kAnswering;
    stream.since = Clock::now();
    stream.status = Status(StatusCode::UNAVAILABLE, "the server stops");
    nghttp2_session_resume_data(session_, stream.id);
  }
}

bool GrpcSession::is_answering() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& entry) {
    return entry.second->state == State::kComputing || entry.second->state == State::kAnswering;
  });
}

bool GrpcSession::Tick() {
  const Clock::time_point now = Clock::now();
  resets_.Refill(kMostResets);
  controls_.Refill(kMostControls);
  if ((streams_.empty() && now - idle_since_ > kIdle) || now - start_ > kAge) Drain();
  LookAtWatches();
  for (const auto& entry : streams_) {
    Stream& stream = *entry.second;
    const auto age = now - stream.since;
    if (stream.state == State::kHead && age > kHead) return false;
    if (stream.state == State::kBody && age > kBody) {
      SubmitError(stream, Status(StatusCode::DEADLINE_EXCEEDED, "the message came too slowly"));
    } else if (stream.state == State::kAnswering && age > kAnswer) {
      nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream.id, NGHTTP2_CANCEL);
    }
  }
  return now < drains_since_ || now - drains_since_ < kGrace;
}

}  // namespace group_embedding::server
