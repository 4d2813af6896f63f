#include "serving/server/protocol/http_server.h"

#include <sys/resource.h>

#include <chrono>
#include <list>
#include <mutex>
#include <thread>

#include "serving/server/protocol/http_connection.h"

namespace group_embedding::server {
namespace {

using Error = beast::error_code;
using asio::ip::tcp;

constexpr std::chrono::milliseconds kWithoutDescriptors(100);

// A connection needs a file descriptor, of which a process has 1,024 unless it asks for more.
void AskForDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

class HttpServer::Listener {
 public:
  Listener(HttpOptions options,
           std::function<std::optional<HttpAnswer>(const HttpRequest&)> at_once,
           std::function<HttpAnswer(const HttpRequest&)> handler,
           std::function<std::string(const std::string&)> refused)
      : acceptor_(io_),
        pause_(io_),
        service_(std::move(options), std::move(at_once), std::move(handler), std::move(refused)) {}

  ~Listener() { Stop(0); }

  Status Start() {
    AskForDescriptors();
    if (Status status = LoadTls(); !status.ok()) return status;
    if (!Listen()) {
      return Status(StatusCode::UNAVAILABLE,
                    "REST cannot listen on " + service_.options.host + ":" +
                        std::to_string(service_.options.port) +
                        ": the port is in use, or the address is not this machine's");
    }
    Accept();
    thread_ = std::thread([this] { io_.run(); });
    return Status::OK;
  }

  int port() const { return port_; }

  void Stop(double seconds) {
    if (!thread_.joinable()) return;
    // New connections are taken until the end: probes ask whether the server is ready.
    asio::post(io_, [this] {
      service_.is_stopping = true;
      CloseIdle();
    });
    {
      std::unique_lock<std::mutex> lock(service_.mutex);
      service_.none_computed.wait_for(lock, std::chrono::duration<double>(seconds),
                                      [this] { return service_.num_computed == 0; });
    }
    io_.stop();
    thread_.join();
    service_.workers.join();
    connections_.clear();
  }

 private:
  Status LoadTls() {
    const HttpOptions& options = service_.options;
    if (options.tls_key.empty()) return Status::OK;
    tls_ = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
    Error error;
    tls_->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                          asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                          asio::ssl::context::no_tlsv1_1,
                      error);
    if (!error) tls_->use_certificate_chain_file(options.tls_certificate, error);
    if (!error) tls_->use_private_key_file(options.tls_key, asio::ssl::context::pem, error);
    if (!error && !options.tls_client_ca.empty()) {
      tls_->load_verify_file(options.tls_client_ca, error);
      if (!error) {
        tls_->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert,
                              error);
      }
    }
    if (!error) return Status::OK;
    return Status(StatusCode::INVALID_ARGUMENT, "REST cannot use '" + options.tls_certificate +
                                                    "' and '" + options.tls_key +
                                                    "': expected a PEM chain and its key");
  }

  bool Listen() {
    Error error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(service_.options.host, std::to_string(service_.options.port),
                         tcp::resolver::passive, error);
    if (error || found.empty()) return false;
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    return !error;
  }

  void Accept() {
    acceptor_.async_accept([this](Error error, tcp::socket socket) {
      if (error) return AcceptLater();
      if (connections_.size() < static_cast<size_t>(service_.options.most_connections) ||
          CloseOldestIdle()) {
        Add(std::move(socket));
      }
      Accept();
    });
  }

  // There is no file descriptor for another connection.
  void AcceptLater() {
    CloseOldestIdle();
    pause_.expires_after(kWithoutDescriptors);
    pause_.async_wait([this](Error error) {
      if (!error) Accept();
    });
  }

  void Add(tcp::socket socket) {
    const auto place = connections_.insert(connections_.end(),
                                           MakeConnection(std::move(socket), tls_.get(), service_));
    // The connection calls it: its last owner is the handler that is running.
    (*place)->Start([this, place] { connections_.erase(place); });
  }

  // The oldest that waits for a head, or else for a body. False: each is answering a request.
  bool CloseOldestIdle() {
    for (const bool also_in_body : {false, true}) {
      for (const auto& connection : connections_) {
        if (connection->CloseIfIdle(also_in_body)) return true;
      }
    }
    return false;
  }

  void CloseIdle() {
    for (const auto& connection : connections_) connection->CloseIfIdle(false);
  }

  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  HttpService service_;
  std::unique_ptr<asio::ssl::context> tls_;
  std::list<std::shared_ptr<HttpConnection>> connections_;  // the oldest first
  std::thread thread_;
  int port_ = 0;
};

HttpServer::HttpServer(HttpOptions options,
                       std::function<std::optional<HttpAnswer>(const HttpRequest&)> at_once,
                       std::function<HttpAnswer(const HttpRequest&)> handler,
                       std::function<std::string(const std::string&)> refused)
    : listener_(std::make_unique<Listener>(std::move(options), std::move(at_once),
                                           std::move(handler), std::move(refused))) {}

HttpServer::~HttpServer() = default;

Status HttpServer::Start() { return listener_->Start(); }

int HttpServer::port() const { return listener_->port(); }

void HttpServer::Stop(double seconds) { listener_->Stop(seconds); }

}  // namespace group_embedding::server
