#include "serving/server/protocol/grpc_session.h"

#include <algorithm>

#include "serving/server/protocol/grpc_stream.h"

namespace group_embedding::server {
namespace {

using std::chrono::seconds;

constexpr uint32_t kMostStreams = 1024, kWindowBytes = 1 << 20;
constexpr int32_t kConnectionWindowBytes = 4 << 20;
// The longest time of a head; a message; an answer, since its last byte was sent; a connection
// without calls; its age, after which clients connect anew; and the time of its last calls then.
constexpr seconds kHead(10), kBody(30), kAnswer(30), kIdle(600), kAge(3600), kGrace(60);
// Calls that end by a reset, and frames that bring nothing: so many, and so many a second.
constexpr double kMostResets = 10'000, kResetsPerSecond = 1000;
constexpr double kMostControls = 1000, kControlsPerSecond = 100;

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
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMostGrpcHeadBytes},
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
