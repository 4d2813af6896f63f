// The command line, and TensorFlow Serving's model_config_file.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "serving/server/models/serving_library.h"

namespace group_embedding::server {

// Which of the numbered folders of a model are served.
struct VersionPolicy {
  bool all = false;
  int latest = 1;
  std::vector<int64_t> specific;  // if not empty, these
};

struct ModelToServe {
  std::string name;
  std::string path;    // a SavedModel, or a folder of SavedModels named by their versions
  std::string source;  // a publisher's target: a folder, or file://FOLDER; "": none
  VersionPolicy policy;
  std::map<std::string, int64_t> labels;  // of versions
};

// How requests are joined, by TensorFlow Serving's words.
struct BatchingOptions {
  int64_t most_samples = 0;            // max_batch_size; 0: requests are not joined
  int most_batches = 0;                // max_enqueued_batches; 0: as --queue allows
  std::chrono::microseconds wait{0};   // batch_timeout_micros: under load, for a batch to fill
  std::vector<int64_t> allowed_sizes;  // allowed_batch_sizes, from the least on; none: any
};

// PEM texts. No key: no TLS.
struct Tls {
  std::string certificate, key;
  std::string client_ca;  // not "": clients need a certificate of these authorities
};

struct Options {
  std::vector<ModelToServe> models;
  std::string host;      // "": 127.0.0.1, or 0.0.0.0 with TensorFlow Serving's --port
  int grpc_port = 8500;  // 0: any that is free
  int rest_port = 8501;  // -1: none
  int grpc_connections = 1000;
  int rest_connections = 1000;
  int threads = 0;           // requests that are computed at a time; 0: one per core
  int queue = 256;           // requests that wait
  int op_threads = 0;        // TensorFlow's, of one op; 0: TensorFlow's choice
  int inter_op_threads = 0;  // TensorFlow's, for ops side by side; 0: a request's own thread
  double timeout_seconds = 30;
  double poll_seconds = 1;
  double stop_seconds = 10;  // for requests in flight, once the server has to stop
  int64_t max_message_bytes = int64_t{64} << 20;
  std::string grpc_socket;                              // a path; "": none
  std::string tls_certificate, tls_key, tls_client_ca;  // PEM files; "": no TLS
  Tls grpc_tls, rest_tls;  // of these files; TensorFlow Serving's ssl_config_file has gRPC's alone
  std::string monitoring_path = "/monitoring/prometheus/metrics";  // "": none
  std::string quantize, tensorflow, library, state, tiers, device;
  bool enable_batching = false;
  std::string batching_parameters_file;
  BatchingOptions batching;
  bool help = false, version = false;
  bool listens_everywhere = false;  // --port was given, by which TensorFlow Serving does
  std::vector<std::string> notes;   // of flags of TensorFlow Serving, for the log
};

// TensorFlow Serving's flag as arguments of this program, and what is to be said of it.
struct ForeignFlag {
  std::string name, value;  // the argument; "": none
  std::string note;         // a line for the log, or why it is refused; "": none
  bool is_refused = false;
};
// Whether tensorflow_model_server has the flag. name: without "--", with '-' in the place of '_'.
// A switch needs no value.
bool IsForeignFlag(const std::string& name, bool* is_switch);
ForeignFlag ReadForeignFlag(const std::string& name, const std::string& value);

// Errors name the argument, the expected and the actual value.
Status ParseCommandLine(int argc, char** argv, Options* options);

// Reads --batching-parameters-file, or takes defaults, if batching is enabled.
Status ReadBatching(Options* options);

Status ReadModelConfig(const std::string& file, std::vector<ModelToServe>* models);
// TensorFlow Serving's ssl_config_file and monitoring_config_file.
Status ReadSslConfig(const std::string& file, Tls* tls);
Status ReadMonitoringConfig(const std::string& file, std::string* path);

// What --help prints.
std::string Usage();

}  // namespace group_embedding::server
