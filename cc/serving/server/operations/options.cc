#include "serving/server/operations/options.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

namespace group_embedding::server {
namespace {

Status Bad(const std::string& what) { return Status(StatusCode::INVALID_ARGUMENT, what); }

// What --model-name and --model-base-path said, which are one model.
struct OneModel {
  std::string name = "default", path;
};

struct Argument {
  const char* name;
  const char* value;  // in --help
  const char* help;
  std::function<Status(const std::string&)> read;
  bool is_switch = false;  // needs no value
};

std::function<Status(const std::string&)> Text(std::string* to) {
  return [to](const std::string& text) {
    *to = text;
    return Status::OK;
  };
}

std::function<Status(const std::string&)> Switch(bool* to) {
  return [to](const std::string& text) {
    *to = text == "true";
    return *to || text == "false" ? Status::OK : Bad("expected true or false, got '" + text + "'");
  };
}

template <typename T>
std::function<Status(const std::string&)> Number(T* to, double least, double most) {
  return [=](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool right = !text.empty() && *end == '\0' && value >= least && value <= most &&
                       static_cast<double>(static_cast<T>(value)) == value;
    if (!right) {
      return Bad("expected a number from " + std::to_string(static_cast<int64_t>(least)) + " to " +
                 std::to_string(static_cast<int64_t>(most)) + ", got '" + text + "'");
    }
    *to = static_cast<T>(value);
    return Status::OK;
  };
}

Status AddModel(const std::string& text, std::vector<ModelToServe>* models) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return Bad("expected NAME=PATH, got '" + text + "'");
  }
  ModelToServe model;
  model.name = text.substr(0, equals);
  model.path = text.substr(equals + 1);
  models->push_back(model);
  return Status::OK;
}

Status AddSource(const std::string& text, std::vector<ModelToServe>* models) {
  if (models->empty()) return Bad("expected --model in front of it: a source is one model's");
  if (!models->back().source.empty()) return Bad("expected one source for a model, got two");
  if (text.find("://") != std::string::npos && text.rfind("file://", 0) != 0) {
    return Bad(
        "expected a folder or file://FOLDER, got '" + text +
        "'; python -m group_embedding.serving takes it, and copies its versions to a folder");
  }
  models->back().source = text;
  return Status::OK;
}

std::vector<Argument> ArgumentsOf(Options* o) {
  std::vector<ModelToServe>* models = &o->models;
  return {
      {"model", "NAME=PATH",
       "a SavedModel, or a folder of SavedModels named by versions; repeatable",
       [=](const std::string& text) { return AddModel(text, models); }},
      {"source", "URL", "the publisher's target that the model before it follows: file://FOLDER",
       [=](const std::string& text) { return AddSource(text, models); }},
      {"model-config-file", "FILE", "models, in TensorFlow Serving's format",
       [=](const std::string& text) { return ReadModelConfig(text, models); }},
      {"host", "ADDRESS",
       "address to listen on (127.0.0.1, or with --port every one); 0.0.0.0 is every one",
       Text(&o->host)},
      {"grpc-port", "PORT", "of gRPC (8500); 0 is any that is free",
       Number(&o->grpc_port, 0, 65535)},
      {"rest-port", "PORT",
       "of REST, metrics and the live page (8501); 0 is any that is free, -1 none",
       Number(&o->rest_port, -1, 65535)},
      {"grpc-connections", "N",
       "connections of gRPC at a time (1000): another one ends one that has no request in flight",
       Number(&o->grpc_connections, 1, 1e6)},
      {"rest-connections", "N",
       "connections of REST at a time (1000): another one ends one that has no request in flight",
       Number(&o->rest_connections, 1, 1e6)},
      {"threads", "N", "requests computed at a time (0: one per core)",
       Number(&o->threads, 0, 4096)},
      {"queue", "N", "requests that may wait (256)", Number(&o->queue, 0, 4096)},
      {"enable-batching", "[BOOL]",
       "requests that wait and fit together are computed as one: for models whose outputs of a "
       "sample do not depend on other samples (false)",
       Switch(&o->enable_batching), true},
      {"batching-parameters-file", "FILE", "limits of batches, in TensorFlow Serving's format",
       Text(&o->batching_parameters_file)},
      {"op-threads", "N", "TensorFlow's threads of an op (0: one per core)",
       Number(&o->op_threads, 0, 4096)},
      {"inter-op-threads", "N",
       "TensorFlow's threads for ops side by side (0: a request runs its ops one by one)",
       Number(&o->inter_op_threads, 0, 4096)},
      {"timeout-seconds", "S",
       "the longest that a request waits, if its client names no deadline (30)",
       Number(&o->timeout_seconds, 0, 1e6)},
      {"poll-seconds", "S", "between looks for new versions (1)", Number(&o->poll_seconds, 0, 1e6)},
      {"stop-seconds", "S", "for requests in flight once SIGTERM came (10)",
       Number(&o->stop_seconds, 0, 1e6)},
      {"max-message-bytes", "N", "of a request or response (67108864)",
       Number(&o->max_message_bytes, 1, 2147483647)},
      {"tls-certificate", "FILE", "PEM chain of the server: gRPC and REST are TLS then",
       Text(&o->tls_certificate)},
      {"tls-key", "FILE", "PEM private key of the server", Text(&o->tls_key)},
      {"tls-client-ca", "FILE", "PEM authorities: clients need a certificate then",
       Text(&o->tls_client_ca)},
      {"ssl-config-file", "FILE", "TLS of gRPC alone, in TensorFlow Serving's format",
       [=](const std::string& text) { return ReadSslConfig(text, &o->grpc_tls); }},
      {"monitoring-config-file", "FILE",
       "the path of TensorFlow Serving's metrics, in its format "
       "(/monitoring/prometheus/metrics)",
       [=](const std::string& text) { return ReadMonitoringConfig(text, &o->monitoring_path); }},
      {"grpc-socket-path", "PATH", "a Unix socket on which gRPC listens, too",
       Text(&o->grpc_socket)},
      {"quantize", "DTYPE", "storage of rows: int8, fp8 or bfloat16; as trained without it",
       Text(&o->quantize)},
      {"tiers", "TIERS", "memory=SIZE,rocksdb=FOLDER or redis=HOST:PORT[,...]: rows below memory",
       Text(&o->tiers)},
      {"device", "DEVICE", "that models run on: CPU, GPU or GPU:1 (CPU)", Text(&o->device)},
      {"state", "FOLDER", "where applied versions are written down, for the next start",
       Text(&o->state)},
      {"tensorflow", "FOLDER", "of the Python package tensorflow", Text(&o->tensorflow)},
      {"library", "FILE", "libge_serving; the one beside this program without it",
       Text(&o->library)},
  };
}

Status ReadPem(const char* argument, const std::string& path, std::string* text) {
  if (path.empty()) return Status::OK;
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  *text = content.str();
  if (file && !text->empty()) return Status::OK;
  return Bad(std::string(argument) + ": cannot read '" + path + "', or it is empty");
}

// The files that are named, in memory.
Status ReadTls(Options* options) {
  if (options->tls_key.empty()) return Status::OK;
  if (!options->grpc_tls.key.empty()) {
    return Bad("expected --ssl_config_file, or --tls-certificate and --tls-key, got both");
  }
  Tls tls;
  Status status = ReadPem("--tls-key", options->tls_key, &tls.key);
  if (status.ok())
    status = ReadPem("--tls-certificate", options->tls_certificate, &tls.certificate);
  if (status.ok()) status = ReadPem("--tls-client-ca", options->tls_client_ca, &tls.client_ca);
  options->grpc_tls = options->rest_tls = tls;
  return status;
}

Status Check(const Options& options) {
  if (options.models.empty())
    return Bad("no model: expected --model NAME=PATH, or --model-config-file");
  std::set<std::string> names;
  for (const ModelToServe& model : options.models) {
    if (model.name.find_first_of("/: \t\n") != std::string::npos) {
      return Bad("model '" + model.name + "': expected a name without '/', ':' and blanks");
    }
    if (!names.insert(model.name).second) return Bad("two models are named '" + model.name + "'");
  }
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return Bad("expected both of --tls-certificate and --tls-key, or neither");
  }
  if (!options.tls_client_ca.empty() && options.tls_key.empty()) {
    return Bad("--tls-client-ca needs --tls-certificate and --tls-key");
  }
  return Status::OK;
}

Status TakeForeign(const ForeignFlag& flag, const std::vector<Argument>& arguments, OneModel* one,
                   Options* options) {
  if (flag.is_refused) return Bad("is not taken here: " + flag.note);
  if (!flag.note.empty()) options->notes.push_back(flag.note);
  if (flag.name.empty()) return Status::OK;
  if (flag.name == "model-name") {
    one->name = flag.value;
    return Status::OK;
  }
  if (flag.name == "model-base-path") {
    one->path = flag.value;
    return Status::OK;
  }
  for (const Argument& argument : arguments) {
    if (flag.name != argument.name) continue;
    if (flag.name == "grpc-port" || flag.name == "rest-port") options->listens_everywhere = true;
    return argument.read(flag.value);
  }
  return Bad("has no argument here");
}

}  // namespace

Status ParseCommandLine(int argc, char** argv, Options* options) {
  const std::vector<Argument> arguments = ArgumentsOf(options);
  OneModel one;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i], value;
    if (name == "--help" || name == "-h" || name == "--version") {
      (name == "--version" ? options->version : options->help) = true;
      return Status::OK;
    }
    const size_t equals = name.find('=');
    const bool joined = name.rfind("--", 0) == 0 && equals != std::string::npos;
    if (joined) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    }
    std::replace(name.begin(), name.end(), '_', '-');
    const auto argument = std::find_if(arguments.begin(), arguments.end(), [&](const Argument& a) {
      return name == std::string("--") + a.name;
    });
    const bool is_own = argument != arguments.end();
    const std::string bare = name.rfind("--", 0) == 0 ? name.substr(2) : name;
    bool is_switch = false;
    if (!is_own && !IsForeignFlag(bare, &is_switch)) {
      return Bad("unknown argument '" + name + "': see --help");
    }
    if (!joined && (is_switch || (is_own && argument->is_switch))) {
      value = "true";
    } else if (!joined) {
      if (i + 1 == argc) return Bad(name + ": expected a value behind it");
      value = argv[++i];
    }
    const Status status = is_own
                              ? argument->read(value)
                              : TakeForeign(ReadForeignFlag(bare, value), arguments, &one, options);
    if (!status.ok()) return Bad(name + ": " + status.error_message());
  }
  if (options->host.empty()) options->host = options->listens_everywhere ? "0.0.0.0" : "127.0.0.1";
  if (!one.path.empty()) {
    ModelToServe model;
    model.name = one.name;
    model.path = one.path;
    options->models.push_back(model);
  }
  if (options->threads == 0) {
    options->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  if (Status status = ReadBatching(options); !status.ok()) return status;
  const Status status = Check(*options);
  return status.ok() ? ReadTls(options) : status;
}

std::string Usage() {
  std::string text = "ge-serve --model NAME=PATH [--source URL] [arguments]\n\n";
  text += "  --version                   its version and those of its libraries\n";
  Options options;
  for (const Argument& argument : ArgumentsOf(&options)) {
    std::string line = std::string("  --") + argument.name + " " + argument.value;
    line.resize(std::max<size_t>(line.size() + 2, 30), ' ');
    text += line + argument.help + "\n";
  }
  return text;
}

}  // namespace group_embedding::server
