// TensorFlow Serving's REST interface, metrics, probes and the live page, over HTTP/1.1.
#pragma once

#include <memory>
#include <thread>

#include "serving/server/models/models.h"

namespace httplib {
class Server;
}

namespace group_embedding::server {

class RestServer {
 public:
  RestServer(Models& models, const Options& options);
  ~RestServer();

  // Listens, on a thread of its own.
  Status Start();
  int port() const { return port_; }
  void Stop();

 private:
  Models& models_;
  const Options& options_;
  std::unique_ptr<httplib::Server> server_;
  std::thread thread_;
  int port_ = 0;
};

}  // namespace group_embedding::server
