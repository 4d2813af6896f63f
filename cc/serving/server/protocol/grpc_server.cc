#include "serving/server/protocol/grpc_server.h"

#include "serving/server/protocol/grpc_connection.h"
#include "serving/server/protocol/grpc_services.h"

namespace group_embedding::server {
namespace {

constexpr int kOtherThreads = 16;  // for answers that wait for no other request
// Messages of clients that send or read slowly. There is memory for the largest few, or for many
// small ones.
constexpr size_t kBufferedMessages = 4, kLeastBufferedBytes = size_t{32} << 20;

ListenOptions GrpcListenOptions(const Options& options) {
  ListenOptions listen;
  listen.protocol = "gRPC";
  listen.host = options.host;
  listen.tls = options.grpc_tls;
  listen.path = options.grpc_socket;
  listen.port = options.grpc_port;
  listen.in_tls = "h2";
  listen.most_connections = options.grpc_connections;
  return listen;
}

}  // namespace

GrpcServer::GrpcServer(Models& models, const Options& options)
    : workers_(options.threads + options.queue + kOtherThreads, 0),
      listener_(GrpcListenOptions(options), [this](auto socket, asio::ssl::context* context) {
        return MakeGrpcConnection(std::move(socket), context, service_, workers_);
      }) {
  service_.methods = MakeGrpcMethods(models, is_serving_);
  service_.most_message_bytes = static_cast<size_t>(options.max_message_bytes);
  service_.most_buffered_bytes =
      std::max(kBufferedMessages * service_.most_message_bytes, kLeastBufferedBytes);
  service_.timeout_seconds = options.timeout_seconds;
}

void GrpcServer::SetServing(bool serving) {
  is_serving_ = serving;
  listener_.ForEach([](ClientConnection& connection) {
    static_cast<GrpcConnection&>(connection).LookAtWatches();
  });
}

void GrpcServer::Stop(double seconds) {
  listener_.Close();
  listener_.ForEach([](ClientConnection& connection) { connection.Drain(); });
  service_.in_flight.WaitForNone(seconds);
  listener_.Stop();
  workers_.Join();
  listener_.Clear();
}

}  // namespace group_embedding::server
