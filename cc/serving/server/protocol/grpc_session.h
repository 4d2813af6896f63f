// gRPC on one connection of HTTP/2, as bytes in and bytes out: nghttp2 keeps HTTP/2's rules, this
// keeps gRPC's and the limits. Not thread-safe.
//
//   bytes ─> nghttp2 ─> head ─> message ─┬─ answered at once ─┬─> answer and trailers ─> bytes
//                                        └─ `compute`, later ─┘
#pragma once

#include <nghttp2/nghttp2.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serving/server/protocol/grpc_call.h"

namespace group_embedding::server {

class GrpcSession {
 public:
  using Clock = std::chrono::steady_clock;
  // False: it cannot be computed, as too many are.
  using Compute = std::function<bool(GrpcCall)>;

  GrpcSession(GrpcService& service, Compute compute);
  ~GrpcSession();
  GrpcSession(const GrpcSession&) = delete;
  GrpcSession& operator=(const GrpcSession&) = delete;

  // Takes bytes of the client's. False: the connection is to end, once what Send has is sent.
  bool Receive(std::string_view bytes);
  // Adds bytes for the client, up to about `most`. False: the connection is to end behind them.
  bool Send(std::string* bytes, size_t most);
  // The answer of a call that `compute` got. Its stream may be gone.
  void Answer(int32_t stream, GrpcAnswer answer);
  // To be called each second. False: the connection is to end, once what Send has is sent.
  bool Tick();
  // Answers watches anew, where their answer differs.
  void LookAtWatches();
  // Takes no more calls; watches end.
  void Drain();
  // All calls end: the client is gone.
  void Abandon();
  // What counts calls for `in_flight` whose last bytes Send gave. To be kept until these are sent.
  std::vector<std::shared_ptr<void>> TakeEndedCalls() { return std::move(ended_calls_); }

  // Frames that Send has not given yet. A client that causes more is not to be read for a while.
  size_t num_queued() const { return nghttp2_session_get_outbound_queue_size(session_); }
  bool has_greeted() const { return has_greeted_; }
  bool has_had_calls() const { return has_had_calls_; }
  bool has_streams() const { return !streams_.empty(); }
  // Calls that are computed, or whose answers are not sent.
  bool is_answering() const;

 private:
  enum class State { kHead, kBody, kComputing, kWatching, kAnswering };
  struct Stream;
  // What may happen so often, and then so often a second.
  struct Allowance {
    double left, per_second;
    bool Take() { return (left -= 1) >= 0; }
    void Refill(double most) { left = left + per_second > most ? most : left + per_second; }
  };

  static nghttp2_session_callbacks* MakeCallbacks();
  int OnHeadBegins(const nghttp2_frame& frame);
  void OnField(Stream& stream, std::string_view name, std::string_view value);
  int OnFrame(const nghttp2_frame& frame);
  void OnHead(Stream& stream);
  void OnData(Stream& stream, std::string_view bytes);
  void OnRequestEnd(Stream& stream);
  void OnFrameSent(const nghttp2_frame& frame);
  int OnStreamEnds(int32_t id, uint32_t error);
  ssize_t Read(Stream& stream, uint8_t* to, size_t most, uint32_t* flags);
  int OnControlFrame();

  Stream* Find(int32_t id);
  bool Buffer(Stream& stream, size_t bytes);
  void Unbuffer(Stream& stream);
  void Start(Stream& stream);
  void Finish(Stream& stream, GrpcAnswer answer);
  void SubmitError(Stream& stream, const Status& status);
  void SubmitPlain(Stream& stream, int status);
  void SubmitData(Stream& stream);
  void Watch(Stream& stream);

  GrpcService& service_;
  const Compute compute_;
  nghttp2_session* session_ = nullptr;
  std::unordered_map<int32_t, std::unique_ptr<Stream>> streams_;
  Allowance resets_, controls_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point idle_since_ = Clock::now();
  Clock::time_point drains_since_ = Clock::time_point::max();
  std::vector<std::shared_ptr<void>> ended_calls_;
  int computing_ = 0;  // also those whose streams are gone
  bool has_greeted_ = false, has_had_calls_ = false, is_bad_ = false;
};

}  // namespace group_embedding::server
