#include "serving/server/protocol/grpc_connection.h"

#include <array>

namespace group_embedding::server {
namespace {

using asio::ip::tcp;
using std::chrono::seconds;
using Clock = GrpcSession::Clock;
using Error = boost::system::error_code;
using Plain = tcp::socket;
using Encrypted = asio::ssl::stream<tcp::socket>;

// From the first byte to the end of HTTP/2's hello; of a write; for the client to read the last
// one.
constexpr seconds kHello(10), kWrite(30), kLinger(2), kTick(1);
constexpr size_t kReadBytes = size_t{32} << 10, kWriteBytes = size_t{256} << 10;
constexpr size_t kMostQueued = 1000;  // frames, while the client does not read

template <typename Stream>
class Connection final : public GrpcConnection {
 public:
  Connection(Stream stream, GrpcService& service, Workers& workers)
      : stream_(std::move(stream)),
        timer_(stream_.get_executor()),
        service_(service),
        workers_(workers),
        session_(service, [this](GrpcCall call) { return Compute(std::move(call)); }) {}

  void Start(std::function<void()> ended) override {
    ended_ = std::move(ended);
    WaitForTick();
    if constexpr (std::is_same_v<Stream, Plain>) {
      Flush();
      Read();
    } else {
      stream_.async_handshake(asio::ssl::stream_base::server, [self = Self(), this](Error error) {
        if (error) return End();
        Flush();
        Read();
      });
    }
  }

  bool CloseIf(Idleness idleness) override {
    if (state_ != State::kOpen || session_.is_answering()) return false;
    const Idleness found = session_.has_streams()     ? Idleness::kInBody
                           : session_.has_had_calls() ? Idleness::kBetweenRequests
                                                      : Idleness::kNoRequestYet;
    if (found != idleness) return false;
    state_ = State::kClosing;
    Close();
    return true;
  }

  void Drain() override {
    session_.Drain();
    Flush();
  }

  void Abandon() override { session_.Abandon(); }

  void LookAtWatches() override {
    session_.LookAtWatches();
    Flush();
  }

 private:
  enum class State { kOpen, kLastWrite, kLingering, kClosing, kEnded };

  auto Self() { return std::static_pointer_cast<Connection>(this->shared_from_this()); }
  auto& Socket() { return stream_.lowest_layer(); }

  void Read() {
    // A client that does not read what it is sent is not read either.
    if (is_reading_ || state_ != State::kOpen) return;
    if (!writing_.empty() && session_.num_queued() > kMostQueued) return;
    is_reading_ = true;
    stream_.async_read_some(asio::buffer(read_), [self = Self(), this](Error error, size_t bytes) {
      is_reading_ = false;
      if (error) return End();
      if (state_ == State::kLingering) return Discard();
      if (state_ != State::kOpen) return;
      if (!session_.Receive({read_.data(), bytes})) state_ = State::kLastWrite;
      Flush();
      Read();
    });
  }

  // Sends what the session has for the client.
  void Flush() {
    if (!writing_.empty() || state_ > State::kLastWrite) return;
    if (!session_.Send(&writing_, kWriteBytes)) state_ = State::kLastWrite;
    if (writing_.empty()) {
      if (state_ == State::kLastWrite) Linger();
      return;
    }
    write_began_ = Clock::now();
    ended_calls_ = session_.TakeEndedCalls();
    asio::async_write(stream_, asio::buffer(writing_), [self = Self(), this](Error error, size_t) {
      writing_.clear();
      ended_calls_.clear();
      if (error) return End();
      Flush();
      Read();
    });
  }

  // On a worker; its answer comes back to this thread.
  bool Compute(GrpcCall call) {
    auto shared = std::make_shared<GrpcCall>(std::move(call));
    return workers_.Post([self = Self(), this, shared] {
      auto answer = std::make_shared<GrpcAnswer>();
      if (!shared->request.cancelled()) {
        *answer = AnswerGrpcCall(*shared, service_.most_message_bytes);
      }
      asio::post(stream_.get_executor(), [self, this, shared, answer] {
        session_.Answer(shared->stream, std::move(*answer));
        Flush();
      });
    });
  }

  void WaitForTick() {
    timer_.expires_after(kTick);
    timer_.async_wait([self = Self(), this](Error error) {
      if (error || state_ == State::kEnded) return;
      const auto now = Clock::now();
      const bool is_slow = (!session_.has_greeted() && now - start_ > kHello) ||
                           (!writing_.empty() && now - write_began_ > kWrite) ||
                           (state_ == State::kLingering && now - linger_began_ > kLinger);
      if (is_slow || !session_.Tick()) return End();
      Flush();
      WaitForTick();
    });
  }

  // Says that nothing more comes, and reads a while: a socket that is closed with unread bytes
  // takes back what was sent.
  void Linger() {
    state_ = State::kLingering;
    linger_began_ = Clock::now();
    Error ignored;
    Socket().shutdown(tcp::socket::shutdown_send, ignored);
    Discard();
  }

  void Discard() {
    if (is_reading_) return;
    is_reading_ = true;
    Socket().async_wait(tcp::socket::wait_read, [self = Self(), this](Error error) {
      is_reading_ = false;
      if (error || state_ != State::kLingering) return End();
      const ssize_t count =
          recv(Socket().native_handle(), read_.data(), read_.size(), MSG_DONTWAIT);
      count > 0 ? Discard() : End();
    });
  }

  void Close() {
    Error ignored;
    timer_.cancel();
    Socket().close(ignored);
    asio::post(stream_.get_executor(), [self = Self(), this] { End(); });
  }

  void End() {
    if (state_ == State::kEnded) return;
    state_ = State::kEnded;
    Error ignored;
    timer_.cancel();
    Socket().close(ignored);
    session_.Abandon();
    ended_();
  }

  Stream stream_;
  asio::steady_timer timer_;
  GrpcService& service_;
  Workers& workers_;
  GrpcSession session_;
  std::function<void()> ended_;
  State state_ = State::kOpen;
  bool is_reading_ = false;
  std::array<char, kReadBytes> read_;
  std::string writing_;                             // not empty: a write is under way
  std::vector<std::shared_ptr<void>> ended_calls_;  // whose last bytes it writes
  const Clock::time_point start_ = Clock::now();
  Clock::time_point write_began_ = start_, linger_began_ = start_;
};

}  // namespace

std::shared_ptr<GrpcConnection> MakeGrpcConnection(tcp::socket socket, asio::ssl::context* context,
                                                   GrpcService& service, Workers& workers) {
  if (context == nullptr) {
    return std::make_shared<Connection<Plain>>(std::move(socket), service, workers);
  }
  return std::make_shared<Connection<Encrypted>>(Encrypted(std::move(socket), *context), service,
                                                 workers);
}

}  // namespace group_embedding::server
