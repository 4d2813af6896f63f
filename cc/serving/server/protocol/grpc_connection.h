// A connection of gRPC, plain or with TLS. Everything but the answers of workers runs on one
// thread.
#pragma once

#include <memory>

#include "serving/server/protocol/grpc_session.h"
#include "serving/server/protocol/listener.h"

namespace group_embedding::server {

class GrpcConnection : public ClientConnection {
 public:
  // Answers watches anew, where their answer differs.
  virtual void LookAtWatches() = 0;
};

// `context` is of TLS; null: the connection is plain.
std::shared_ptr<GrpcConnection> MakeGrpcConnection(asio::ip::tcp::socket socket,
                                                   asio::ssl::context* context,
                                                   GrpcService& service, Workers& workers);

}  // namespace group_embedding::server
