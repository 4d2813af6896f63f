#include "serving/server/protocol/listener.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>

namespace group_embedding::server {
namespace {

using asio::ip::tcp;
using Error = boost::system::error_code;

constexpr std::chrono::milliseconds kWithoutDescriptors(100);

// A connection needs a file descriptor, of which a process has 1,024 unless it asks for more.
void AskForDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Takes this protocol, if a client of TLS names it among others; else the handshake fails.
int SelectProtocol(SSL*, const unsigned char** selected, unsigned char* bytes,
                   const unsigned char* named, unsigned named_bytes, void* protocol) {
  const auto& wanted = *static_cast<const std::string*>(protocol);
  for (unsigned i = 0; i < named_bytes; i += 1 + named[i]) {
    if (i + 1 + named[i] > named_bytes) break;
    const std::string name(reinterpret_cast<const char*>(named) + i + 1, named[i]);
    if (name != wanted) continue;
    *selected = named + i + 1;
    *bytes = named[i];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

Listener::Listener(ListenOptions options, Make make)
    : options_(std::move(options)), make_(std::move(make)) {}

Status Listener::Start() {
  AskForDescriptors();
  if (Status status = LoadTls(); !status.ok()) return status;
  if (!Listen()) {
    return Status(StatusCode::UNAVAILABLE,
                  options_.protocol + " cannot listen on " + options_.host + ":" +
                      std::to_string(options_.port) +
                      ": the port is in use, or the address is not this machine's");
  }
  if (!options_.path.empty() && !ListenAtPath()) {
    return Status(StatusCode::UNAVAILABLE, options_.protocol + " cannot listen on '" +
                                               options_.path +
                                               "': expected a path of at most 107 "
                                               "bytes in a folder that can be written");
  }
  Accept();
  if (!options_.path.empty()) AcceptAtPath();
  thread_ = std::thread([this] { io_.run(); });
  return Status::OK;
}

void Listener::Close() {
  asio::post(io_, [this] {
    Error ignored;
    acceptor_.close(ignored);
    local_acceptor_.close(ignored);
  });
}

void Listener::ForEach(const std::function<void(ClientConnection&)>& call) {
  asio::post(io_, [this, call] {
    for (auto at = connections_.begin(); at != connections_.end();) {
      const std::shared_ptr<ClientConnection> connection = *at++;  // it may end, and leave the list
      call(*connection);
    }
  });
}

void Listener::Stop() {
  if (!thread_.joinable()) return;
  io_.stop();
  thread_.join();
  for (const auto& connection : connections_) connection->Abandon();
  if (!options_.path.empty()) unlink(options_.path.c_str());
}

Status Listener::LoadTls() {
  const Tls& tls = options_.tls;
  if (tls.key.empty()) return Status::OK;
  tls_ = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  Error error;
  tls_->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                        asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                        asio::ssl::context::no_tlsv1_1,
                    error);
  if (!error) tls_->use_certificate_chain(asio::buffer(tls.certificate), error);
  if (!error) tls_->use_private_key(asio::buffer(tls.key), asio::ssl::context::pem, error);
  if (!error && !tls.client_ca.empty()) {
    tls_->add_certificate_authority(asio::buffer(tls.client_ca), error);
    if (!error) {
      tls_->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert, error);
    }
  }
  if (!options_.in_tls.empty()) {
    SSL_CTX_set_alpn_select_cb(tls_->native_handle(), SelectProtocol,
                               const_cast<std::string*>(&options_.in_tls));
  }
  if (!error) return Status::OK;
  return Status(StatusCode::INVALID_ARGUMENT,
                options_.protocol +
                    " cannot use the certificate and key of TLS: expected a PEM "
                    "chain, its key" +
                    (tls.client_ca.empty() ? "" : ", and PEM authorities") + ", got " +
                    error.message());
}

bool Listener::Listen() {
  Error error;
  tcp::resolver resolver(io_);
  const auto found =
      resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive, error);
  if (error || found.empty()) return false;
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (!error) port_ = acceptor_.local_endpoint(error).port();
  return !error;
}

// A socket that a server before has left is removed.
bool Listener::ListenAtPath() {
  Error error;
  struct stat found {};
  if (lstat(options_.path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) {
    unlink(options_.path.c_str());
  }
  if (options_.path.size() >= sizeof(sockaddr_un::sun_path)) return false;
  local_acceptor_.open(asio::local::stream_protocol(), error);
  if (!error) local_acceptor_.bind(asio::local::stream_protocol::endpoint(options_.path), error);
  if (!error) local_acceptor_.listen(asio::socket_base::max_listen_connections, error);
  return !error;
}

void Listener::Accept() {
  acceptor_.async_accept([this](Error error, tcp::socket socket) {
    Take(error, std::move(socket), &Listener::Accept);
  });
}

void Listener::AcceptAtPath() {
  local_acceptor_.async_accept([this](Error error, asio::local::stream_protocol::socket socket) {
    // From here on a socket is one, whatever it is reached by.
    tcp::socket same(io_);
    if (!error) same.assign(tcp::v4(), socket.release());
    Take(error, std::move(same), &Listener::AcceptAtPath);
  });
}

void Listener::Take(Error error, tcp::socket socket, void (Listener::*accept_next)()) {
  if (!acceptor_.is_open()) return;
  if (error) {  // there is no file descriptor for another connection
    if (CloseOldestIdle()) return (this->*accept_next)();
    const auto pause = std::make_shared<asio::steady_timer>(io_, kWithoutDescriptors);
    pause->async_wait([this, pause, accept_next](Error) { (this->*accept_next)(); });
    return;
  }
  if (connections_.size() < static_cast<size_t>(options_.most_connections) || CloseOldestIdle()) {
    Add(std::move(socket));
  }
  (this->*accept_next)();
}

void Listener::Add(tcp::socket socket) {
  Error ignored;  // the client may be gone
  socket.set_option(tcp::no_delay(true), ignored);
  const auto place = connections_.insert(connections_.end(), make_(std::move(socket), tls_.get()));
  // The connection calls it: its last owner is the handler that is running.
  (*place)->Start([this, place] { connections_.erase(place); });
}

bool Listener::CloseOldestIdle() {
  for (const Idleness idleness :
       {Idleness::kNoRequestYet, Idleness::kBetweenRequests, Idleness::kInBody}) {
    for (const auto& connection : connections_) {
      if (connection->CloseIf(idleness)) return true;
    }
  }
  return false;
}

}  // namespace group_embedding::server
