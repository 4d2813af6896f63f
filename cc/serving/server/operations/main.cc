// ge-serve: models over TensorFlow Serving's gRPC and REST.
#include <openssl/crypto.h>
#include <signal.h>
#include <unistd.h>
#include <zlib.h>

#include <boost/version.hpp>
#include <cstdio>
#include <filesystem>
#include <future>

#include "serving/server/operations/log.h"
#include "serving/server/protocol/grpc_server.h"
#include "serving/server/protocol/rest_server.h"

namespace group_embedding::server {
namespace {

int Fail(const Status& status) {
  std::fprintf(stderr, "ge-serve: %s\n", status.error_message().c_str());
  return 1;
}

std::string LibraryBesideThis() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path() / "libge_serving.so").string();
}

// SIGTERM and SIGINT wait for `sigwait`: blocked in all threads, as these are started later.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Loads the models. A signal to stop ends the process: nothing answers yet.
Status StartModels(Models& models, const sigset_t& signals) {
  std::future<Status> started = std::async(std::launch::async, [&] { return models.Start(); });
  const timespec moment = {0, 50'000'000};
  while (started.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (sigtimedwait(&signals, nullptr, &moment) > 0) _exit(0);
  }
  return started.get();
}

void PrintVersions() {
  std::printf("ge-serve %s\n", GE_SERVE_VERSION);
  std::printf("nghttp2 %s\n", nghttp2_version(0)->version_str);
  std::printf("protobuf %s\n",
              google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION).c_str());
  std::printf("Boost %d.%d.%d\n", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
              BOOST_VERSION % 100);
  std::printf("%s\n", OpenSSL_version(OPENSSL_VERSION));
  std::printf("zlib %s\n", zlibVersion());
}

int Serve(const Options& options) {
  // protobuf would write a line for each message of a client that is malformed.
  google::protobuf::SetLogHandler(nullptr);
  const sigset_t signals = BlockStopSignals();
  for (const std::string& note : options.notes) Log("arguments", note);
  ServingLibrary library;
  const std::string file = options.library.empty() ? LibraryBesideThis() : options.library;
  Status status = LoadServingLibrary(file, &library);
  if (!status.ok()) return Fail(status);
  Models models(library, options);
  GrpcServer grpc(models, options);
  RestServer rest(models, options);
  // Ports first: probes get an answer while models are loaded.
  status = grpc.Start();
  if (status.ok()) grpc.SetServing(false);
  if (status.ok() && options.rest_port >= 0) status = rest.Start();
  if (status.ok()) status = StartModels(models, signals);
  if (!status.ok()) return Fail(status);
  grpc.SetServing(true);
  std::printf("ge-serve: ready, gRPC on %s:%d", options.host.c_str(), grpc.port());
  if (options.rest_port >= 0) std::printf(", REST on %s:%d", options.host.c_str(), rest.port());
  std::printf("\n");
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  Log("stop", "takes no new requests, and ends when those in flight are answered");
  grpc.SetServing(false);
  rest.Drain();
  const auto begin = std::chrono::steady_clock::now();
  grpc.Stop(options.stop_seconds);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  rest.Stop(std::max(options.stop_seconds - passed.count(), 0.0));
  models.Stop();
  return 0;
}

}  // namespace
}  // namespace group_embedding::server

int main(int argc, char** argv) {
  using namespace group_embedding::server;
  Options options;
  const Status status = ParseCommandLine(argc, argv, &options);
  if (options.version) {
    PrintVersions();
    return 0;
  }
  if (options.help) {
    std::fputs(Usage().c_str(), stdout);
    return 0;
  }
  return status.ok() ? Serve(options) : Fail(status);
}
