#include "serving/server/protocol/http_connection.h"

#include <sys/socket.h>

#include <atomic>
#include <charconv>
#include <chrono>

#include "serving/server/protocol/gzip.h"

namespace group_embedding::server {
namespace {

using std::chrono::seconds;
using Error = beast::error_code;
using Plain = beast::tcp_stream;
using Encrypted = beast::ssl_stream<beast::tcp_stream>;

// Between two requests; from the first byte of a head to its last; of a body; of an answer.
constexpr seconds kIdle(60), kHandshake(10), kHead(10), kBody(30), kAnswer(30), kLinger(2);
constexpr size_t kMostHeadBytes = size_t{16} << 10;
constexpr size_t kReadBytes = size_t{64} << 10;
// Smaller answers are not worth the work.
constexpr size_t kLeastDeflatedBytes = 1024;
const HttpRefusal kTooLarge{413, "the body is above --max-message-bytes"};
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// Whether a field's list of words names one, whatever its case.
bool Names(beast::string_view list, beast::string_view word) {
  for (const auto& name : http::token_list(list)) {
    if (beast::iequals(name, word)) return true;
  }
  return false;
}

// -1: it is no number, or there is none.
int64_t NumberOf(beast::string_view text) {
  int64_t number = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() ? number : -1;
}

template <typename Stream>
class Connection final : public ClientConnection {
 public:
  Connection(Stream stream, HttpService& service) : stream_(std::move(stream)), service_(service) {}

  void Start(std::function<void()> ended) override {
    ended_ = std::move(ended);
    if constexpr (std::is_same_v<Stream, Plain>) {
      ReadHead();
    } else {
      Lowest().expires_after(kHandshake);
      stream_.async_handshake(asio::ssl::stream_base::server, Bind(&Connection::OnHandshake));
    }
  }

  bool CloseIf(Idleness idleness) override {
    const bool is_idle = idleness == Idleness::kInBody
                             ? state_ == State::kInBody
                             : state_ == State::kIdle &&
                                   has_had_request_ == (idleness == Idleness::kBetweenRequests);
    if (!is_idle) return false;
    state_ = State::kClosing;
    Lowest().close();
    return true;
  }

  // The first request of a new connection may be on its way: it is answered.
  void Drain() override { CloseIf(Idleness::kBetweenRequests); }

 private:
  enum class State { kIdle, kInBody, kAnswering, kClosing, kEnded };

  beast::tcp_stream& Lowest() { return beast::get_lowest_layer(stream_); }

  // A completion handler that keeps the connection alive.
  template <typename... Arguments>
  auto Bind(void (Connection::*method)(Arguments...)) {
    return beast::bind_front_handler(
        method, std::static_pointer_cast<Connection>(this->shared_from_this()));
  }

  void OnHandshake(Error error) { error ? End() : ReadHead(); }

  // A head, of which the last request's read may have brought bytes.
  void ReadHead() {
    state_ = State::kIdle;
    SkipEmptyLine();
    Lowest().expires_after(buffer_.size() == 0 ? kIdle : kHead);
    LookForHead();
  }

  void OnHeadBytes(Error error, size_t bytes) {
    if (error) return End();
    const bool is_first = buffer_.size() == 0;
    buffer_.commit(bytes);
    SkipEmptyLine();
    if (is_first && buffer_.size() > 0) Lowest().expires_after(kHead);  // for all of the head
    LookForHead();
  }

  void LookForHead() {
    const std::string_view text = Buffered();
    const size_t end = text.find(kHeadEnd);
    if (end != std::string_view::npos) return OnHead(text.substr(0, end + kHeadEnd.size()));
    if (text.size() >= kMostHeadBytes) {
      return Refuse(
          {431, "expected a head of at most " + std::to_string(kMostHeadBytes) + " bytes"});
    }
    // A line that ends by LF alone would be waited for until the deadline.
    if (text.find("\n\n") != std::string_view::npos) return Refuse(CheckHead(text));
    stream_.async_read_some(buffer_.prepare(kMostHeadBytes - buffer_.size()),
                            Bind(&Connection::OnHeadBytes));
  }

  // One before a request is no part of it (RFC 9112, section 2.2).
  void SkipEmptyLine() {
    if (Buffered().substr(0, kLineEnd.size()) == kLineEnd) buffer_.consume(kLineEnd.size());
  }

  std::string_view Buffered() const {
    return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
  }

  void OnHead(std::string_view head) {
    state_ = State::kAnswering;
    has_had_request_ = true;
    if (HttpRefusal refusal = CheckHead(head); refusal.status != 200) return Refuse(refusal);
    parser_.emplace();
    parser_->header_limit(kMostHeadBytes);
    parser_->body_limit(service_.options.most_body_bytes);
    parser_->on_chunk_header(refuse_extensions_);
    Error error;
    size_t used = 0;
    while (!parser_->is_header_done() && !error && used < head.size()) {
      used += parser_->put(asio::buffer(head.data() + used, head.size() - used), error);
    }
    buffer_.consume(used);
    if (error == http::error::need_more) error = {};
    if (error) return RefuseBody(error);
    const auto& message = parser_->get();
    request_ = {};
    request_.method = std::string(message.method_string());
    const std::string_view target(message.target().data(), message.target().size());
    if (!ReadPath(target, &request_.path)) return Refuse({400, "malformed request: the path"});
    const auto encoding = message[http::field::content_encoding];
    is_gzip_ = beast::iequals(encoding, "gzip");
    if (!is_gzip_ && !encoding.empty() && !beast::iequals(encoding, "identity")) {
      return Refuse({415, "Content-Encoding: expected gzip"});
    }
    request_.json_bytes = NumberOf(message["Inference-Header-Content-Length"]);
    takes_gzip_ = Names(message[http::field::accept_encoding], "gzip");
    const auto method = message.method();
    if (method == http::verb::get || method == http::verb::head) return Answer();
    if (method != http::verb::post) return Refuse({405, "expected GET, HEAD or POST"});
    const auto expected = message[http::field::expect];
    if (!expected.empty() && !beast::iequals(expected, "100-continue")) {
      return Refuse({417, "Expect: expected 100-continue"});
    }
    state_ = State::kInBody;
    Lowest().expires_after(kBody);
    if (expected.empty()) return ReadBody({}, 0);
    asio::async_write(stream_, asio::buffer(kContinue), Bind(&Connection::ReadBody));
  }

  void ReadBody(Error error, size_t) {
    if (error) return End();
    http::async_read(stream_, buffer_, *parser_, Bind(&Connection::OnBody));
  }

  void OnBody(Error error, size_t) {
    if (error) return RefuseBody(error);
    request_.body = std::move(parser_->get().body());
    Answer();
  }

  void RefuseBody(Error error) {
    if (error == http::error::body_limit) return Refuse(kTooLarge);
    if (error.category() == make_error_code(http::error::bad_chunk).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      return Refuse({400, "malformed request: " + error.message()});
    }
    if (error == beast::error::timeout) return Refuse({408, "the body came too slowly"});
    End();
  }

  void Answer() {
    state_ = State::kAnswering;
    Lowest().expires_never();
    if (request_.method != "POST") {
      if (auto answer = service_.at_once(request_)) return Write(std::move(*answer));
    }
    const auto is_gone = std::make_shared<std::atomic<bool>>(false);
    request_.cancelled = [is_gone] { return is_gone->load(); };
    watched_ = is_gone;
    WatchForEnd(is_gone);
    service_.in_flight.Add(1);
    is_computed_ = true;
    service_.workers.Post([self = this->shared_from_this(), this, is_gone] {
      auto answer = std::make_shared<HttpAnswer>();
      if (!*is_gone) *answer = Compute();
      asio::post(stream_.get_executor(), [self, this, answer, is_gone] {
        Lowest().socket().cancel();  // the watch, unless it is over and waits for its turn
        watched_ = nullptr;
        *is_gone ? End() : Write(std::move(*answer));
      });
    });
  }

  // On a worker: inflates the body, has the handler answer, and deflates what it answers.
  HttpAnswer Compute() {
    HttpRefusal refusal;
    if (is_gzip_) {
      const std::string body = std::move(request_.body);
      const Inflated inflated = Inflate(body, service_.options.most_body_bytes, &request_.body);
      if (inflated == Inflated::kTooLarge) refusal = kTooLarge;
      if (inflated == Inflated::kMalformed) refusal = {400, "malformed request: expected gzip"};
    }
    HttpAnswer answer = refusal.status == 200 ? Handle() : AnswerOf(refusal);
    if (takes_gzip_ && answer.body.size() >= kLeastDeflatedBytes) {
      if (std::string deflated = Deflate(answer.body); !deflated.empty()) {
        answer.body = std::move(deflated);
        answer.is_gzip = true;
      }
    }
    return answer;
  }

  // An exception, as for want of memory, is the request's alone.
  HttpAnswer Handle() {
    try {
      return service_.handler(request_);
    } catch (const std::exception& error) {
      return AnswerOf({500, std::string("the request failed: ") + error.what()});
    }
  }

  HttpAnswer AnswerOf(const HttpRefusal& refusal) {
    return {refusal.status, "application/json", service_.refused(refusal.message)};
  }

  // Sets `is_gone`, for good, once the client closes the connection before it has the answer. Bytes
  // of its next request end the watch.
  void WatchForEnd(const std::shared_ptr<std::atomic<bool>>& is_gone) {
    Lowest().socket().async_wait(asio::ip::tcp::socket::wait_read, [self = this->shared_from_this(),
                                                                    this, is_gone](Error error) {
      char byte = 0;
      if (error || watched_ != is_gone) return;
      const int socket = Lowest().socket().native_handle();
      const ssize_t count = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (count < 0 && errno != EAGAIN) *is_gone = true;
      if (count == 0) AskForReset(is_gone);
    });
  }

  // The client sends no more: it has closed the connection, or only its own half, and waits for the
  // answer. An interim answer tells the two apart, as a closed socket resets the connection.
  // HTTP/1.0 has none, and TLS no half: there the client is gone.
  void AskForReset(const std::shared_ptr<std::atomic<bool>>& is_gone) {
    if (!std::is_same_v<Stream, Plain> || parser_->get().version() < 11) {
      *is_gone = true;
      return;
    }
    Lowest().socket().async_wait(
        asio::ip::tcp::socket::wait_error,
        [self = this->shared_from_this(), is_gone](Error error) { *is_gone = *is_gone || !error; });
    const ssize_t sent = send(Lowest().socket().native_handle(), kContinue.data(), kContinue.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(kContinue.size())) *is_gone = true;
  }

  // Answers a request that is not taken, and ends the connection: its next request may begin
  // anywhere.
  void Refuse(const HttpRefusal& refusal) {
    state_ = State::kAnswering;
    is_refused_ = true;
    Write(AnswerOf(refusal));
  }

  void Write(HttpAnswer answer) {
    const bool has_head = parser_.has_value() && parser_->is_header_done();
    const bool is_head = has_head && parser_->get().method() == http::verb::head;
    answer_ = {};
    answer_.version(has_head ? static_cast<int>(parser_->get().version()) : 11);
    answer_.result(static_cast<unsigned>(answer.status));
    answer_.set(http::field::content_type, answer.type);
    answer_.set("X-Content-Type-Options", "nosniff");
    if (answer.status == 405) answer_.set(http::field::allow, "GET, HEAD, POST");
    const bool goes_on = has_head && !is_refused_ && !service_.is_stopping;
    answer_.keep_alive(goes_on && parser_->keep_alive());
    if (answer.json_bytes >= 0) {
      answer_.set("Inference-Header-Content-Length", std::to_string(answer.json_bytes));
    }
    if (answer.is_gzip) answer_.set(http::field::content_encoding, "gzip");
    answer_.content_length(answer.body.size());
    if (!is_head) answer_.body() = std::move(answer.body);
    Lowest().expires_after(kAnswer);
    writer_.emplace(answer_);
    writer_->split(is_head);
    if (is_head) {
      http::async_write_header(stream_, *writer_, Bind(&Connection::OnWritten));
    } else {
      http::async_write(stream_, *writer_, Bind(&Connection::OnWritten));
    }
  }

  void OnWritten(Error error, size_t) {
    const bool goes_on = answer_.keep_alive();
    parser_.reset();
    EndComputing();
    if (error) return End();
    goes_on ? ReadHead() : Shutdown();
  }

  // Says that nothing more comes, and reads a while: a socket that is closed with unread bytes
  // takes the answer back.
  void Shutdown() {
    state_ = State::kAnswering;
    Lowest().expires_after(kLinger);
    if constexpr (std::is_same_v<Stream, Plain>) {
      Error ignored;
      Lowest().socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      Linger({}, 0);
    } else {
      stream_.async_shutdown(Bind(&Connection::OnShutdown));
    }
  }

  void OnShutdown(Error) { End(); }

  void Linger(Error error, size_t) {
    if (error) return End();
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kReadBytes), Bind(&Connection::Linger));
  }

  void EndComputing() {
    if (is_computed_) service_.in_flight.Add(-1);
    is_computed_ = false;
  }

  void End() {
    if (state_ == State::kEnded) return;
    EndComputing();
    state_ = State::kEnded;
    Lowest().close();
    ended_();
  }

  Stream stream_;
  HttpService& service_;
  std::function<void()> ended_;
  State state_ = State::kIdle;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::function<void(uint64_t, beast::string_view, Error&)> refuse_extensions_ =
      [](uint64_t, beast::string_view extensions, Error& error) {
        if (!extensions.empty()) error = http::error::bad_chunk_extension;
      };
  HttpRequest request_;
  bool is_gzip_ = false, takes_gzip_ = false, is_refused_ = false;
  bool has_had_request_ = false;
  bool is_computed_ = false;                    // by a worker, and the answer is not written
  std::shared_ptr<std::atomic<bool>> watched_;  // of the request that is computed, else null
  http::response<http::string_body> answer_;
  std::optional<http::response_serializer<http::string_body>> writer_;
};

}  // namespace

std::shared_ptr<ClientConnection> MakeHttpConnection(asio::ip::tcp::socket socket,
                                                     asio::ssl::context* context,
                                                     HttpService& service) {
  if (context == nullptr) {
    return std::make_shared<Connection<Plain>>(Plain(std::move(socket)), service);
  }
  return std::make_shared<Connection<Encrypted>>(Encrypted(std::move(socket), *context), service);
}

}  // namespace group_embedding::server
