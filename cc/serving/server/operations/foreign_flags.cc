#include <cstdlib>
#include <map>

#include "serving/server/operations/options.h"

namespace group_embedding::server {
namespace {

enum class Kind { kSame, kMilliseconds, kPort, kSwitch, kNothing, kRefused, kRefusedSwitch };

// What a flag of tensorflow_model_server is here.
struct Meaning {
  Kind kind;
  const char* text;  // the argument of this program; or what the log says
};

const char kOneByOne[] = "is not needed here: each request is computed by a thread of its own";
const char kLoads[] = "is not needed here: each model has a thread that loads its versions";
const char kOfTensorFlow[] = "has no meaning here: TensorFlow is that of the Python package";

// The flags of TensorFlow Serving 2.19.
const std::map<std::string, Meaning>& Meanings() {
  static const std::map<std::string, Meaning> kMeanings = {
      {"port", {Kind::kSame, "grpc-port"}},
      {"rest-api-port", {Kind::kPort, "rest-port"}},
      {"rest-api-timeout-in-ms", {Kind::kMilliseconds, "timeout-seconds"}},
      {"model-name", {Kind::kSame, "model-name"}},
      {"model-base-path", {Kind::kSame, "model-base-path"}},
      {"file-system-poll-wait-seconds", {Kind::kSame, "poll-seconds"}},
      {"tensorflow-intra-op-parallelism", {Kind::kSame, "op-threads"}},
      {"tensorflow-inter-op-parallelism", {Kind::kSame, "inter-op-threads"}},
      {"tensorflow-session-parallelism", {Kind::kSame, "op-threads"}},
      {"grpc-max-threads", {Kind::kNothing, "is --threads and --queue here"}},
      {"rest-api-num-threads", {Kind::kNothing, "is --threads and --queue here"}},
      {"rest-api-enable-cors-support", {Kind::kSwitch, "is not here: a proxy adds such headers"}},
      {"use-alts-credentials",
       {Kind::kRefusedSwitch, "ALTS asks a service of Google's cloud; TLS is --ssl_config_file"}},
      {"platform-config-file",
       {Kind::kRefused,
        "it exchanges the code that loads models, which is not TensorFlow Serving's"}},
      {"model-config-file-poll-wait-seconds", {Kind::kNothing, "the file is read at the start"}},
      {"allow-version-labels-for-unavailable-models",
       {Kind::kSwitch, "labels may name any version here"}},
      {"num-load-threads", {Kind::kNothing, kLoads}},
      {"num-unload-threads", {Kind::kNothing, kLoads}},
      {"max-num-load-retries",
       {Kind::kNothing, "a version is tried again whenever its files have changed"}},
      {"load-retry-interval-micros",
       {Kind::kNothing, "a version is tried again whenever its files have changed"}},
      {"flush-filesystem-caches", {Kind::kSwitch, "has no meaning here"}},
      {"per-process-gpu-memory-fraction",
       {Kind::kNothing, "is TF_FORCE_GPU_ALLOW_GROWTH here: see --device"}},
      {"saved-model-tags", {Kind::kNothing, "models have the tag `serve`"}},
      {"grpc-channel-arguments", {Kind::kNothing, "has no meaning here"}},
      {"enable-model-warmup", {Kind::kSwitch, "a model with a warm-up file is warmed up"}},
      {"num-request-iterations-for-warmup", {Kind::kNothing, "each request is sent once"}},
      {"remove-unused-fields-from-bundle-metagraph", {Kind::kSwitch, "has no meaning here"}},
      {"prefer-tflite-model",
       {Kind::kSwitch,
        "reads no model.tflite: saved_model.pb is served, as there where it is missing"}},
      {"num-tflite-pools", {Kind::kNothing, "models are SavedModels of TensorFlow"}},
      {"num-tflite-interpreters-per-pool",
       {Kind::kNothing, "models are SavedModels of TensorFlow"}},
      {"enable-signature-method-name-check",
       {Kind::kSwitch, "predict, classify and regress take any signature that has their inputs"}},
      {"enable-profiler", {Kind::kSwitch, kOfTensorFlow}},
      {"xla-cpu-compilation-enabled", {Kind::kSwitch, kOfTensorFlow}},
      {"xla-gpu-compilation-enabled", {Kind::kSwitch, kOfTensorFlow}},
      {"enable-serialization-as-tensor-content",
       {Kind::kSwitch, "answers have a field for each dtype"}},
      {"mixed-precision", {Kind::kNothing, kOfTensorFlow}},
      {"skip-initialize-tpu", {Kind::kSwitch, "there are no TPUs here"}},
      {"enable-grpc-healthcheck-service", {Kind::kSwitch, "the service is there"}},
      {"thread-pool-factory-config-file", {Kind::kNothing, kOneByOne}},
      {"enable-per-model-metrics", {Kind::kSwitch, "metrics are by model"}},
      {"total-model-memory-limit-bytes", {Kind::kNothing, "has no meaning here"}},
      {"enforce-session-run-timeout", {Kind::kSwitch, "has no meaning here"}},
  };
  return kMeanings;
}

}  // namespace

bool IsForeignFlag(const std::string& name, bool* is_switch) {
  const auto found = Meanings().find(name);
  *is_switch = found != Meanings().end() &&
               (found->second.kind == Kind::kSwitch || found->second.kind == Kind::kRefusedSwitch);
  return found != Meanings().end();
}

ForeignFlag ReadForeignFlag(const std::string& name, const std::string& value) {
  const Meaning& meaning = Meanings().at(name);
  const std::string note = "--" + name + " " + meaning.text;
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  const bool is_number = !value.empty() && *end == '\0';
  switch (meaning.kind) {
    case Kind::kSame:
      return {meaning.text, value, ""};
    case Kind::kPort:  // 0, which is any free port here, is none there
      return {meaning.text, value == "0" ? "-1" : value, ""};
    case Kind::kMilliseconds:
      return {meaning.text, is_number ? std::to_string(number / 1000) : value, ""};
    case Kind::kSwitch:
      return {"", "", value == "false" ? "" : note};
    case Kind::kRefusedSwitch:
      if (value == "false") return {"", "", ""};
      [[fallthrough]];
    case Kind::kRefused:
      return {"", "", meaning.text, true};
    case Kind::kNothing:
      break;
  }
  return {"", "", note};
}

}  // namespace group_embedding::server
