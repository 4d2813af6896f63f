// Connections of one port, plain or with TLS, on one thread.
//
// If they are at their most, a new one ends the oldest of those that have sent no request, or else
// of those between two requests, or else of those that send a body.
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "serving/server/operations/options.h"

namespace group_embedding::server {

namespace asio = boost::asio;

struct ListenOptions {
  std::string protocol;  // "REST", in errors
  std::string host;
  int port = 0;      // 0: any that is free
  std::string path;  // of a Unix socket besides; "": none
  Tls tls;
  std::string in_tls;  // the protocol that TLS agrees on, such as "h2"; "": none
  int most_connections = 1000;
};

// What a connection does that a new one could end.
enum class Idleness { kNoRequestYet, kBetweenRequests, kInBody };

// Its methods are called on the listener's thread.
class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  virtual ~ClientConnection() = default;
  // Reads requests and answers them until the connection ends; then calls `ended`.
  virtual void Start(std::function<void()> ended) = 0;
  // Ends it if this is what it does.
  virtual bool CloseIf(Idleness idleness) = 0;
  // Takes no requests from now on.
  virtual void Drain() = 0;
  // Cancels what is being answered. The thread has ended.
  virtual void Abandon() {}
};

class Listener {
 public:
  // context: of TLS; null: the connection is plain.
  using Make = std::function<std::shared_ptr<ClientConnection>(asio::ip::tcp::socket,
                                                               asio::ssl::context* context)>;
  Listener(ListenOptions options, Make make);
  ~Listener() { Stop(); }

  // INVALID_ARGUMENT: the files of TLS are no PEM. UNAVAILABLE: the port is in use, or the address
  // is not this machine's.
  Status Start();
  int port() const { return port_; }

  // Takes no more connections.
  void Close();
  // Calls this for each connection, on their thread.
  void ForEach(const std::function<void(ClientConnection&)>& call);
  // Ends the thread.
  void Stop();
  // Ends all connections. What they hand to other threads must have ended.
  void Clear() { connections_.clear(); }

 private:
  Status LoadTls();
  bool Listen();
  bool ListenAtPath();
  void Accept();
  void AcceptAtPath();
  void Take(boost::system::error_code error, asio::ip::tcp::socket socket,
            void (Listener::*accept_next)());
  void Add(asio::ip::tcp::socket socket);
  bool CloseOldestIdle();

  const ListenOptions options_;
  const Make make_;
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_{io_};
  asio::local::stream_protocol::acceptor local_acceptor_{io_};
  std::unique_ptr<asio::ssl::context> tls_;
  std::list<std::shared_ptr<ClientConnection>> connections_;  // the oldest first
  std::thread thread_;
  int port_ = 0;
};

}  // namespace group_embedding::server
