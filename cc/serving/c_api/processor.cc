// The three functions of DeepRec's Processor, as its documentation publishes them (page
// "Processor"), so that a server that calls them serves with this library.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "serving/c_api/ge_serving.h"
#include "serving/c_api/processor_messages.h"
#include "serving/c_api/wire_format.h"
#include "serving/session/json_reader.h"

namespace ge_serving {
namespace {

constexpr int kOk = 200, kError = 500;  // what process returns

// What initialize returns. DeepRec has no function that frees it.
struct Processor {
  GeModel* model = nullptr;
  std::string path, signature;
};

// A model_config of DeepRec.
struct Config {
  std::string path, signature, options;  // options: of ge_serving_open
};

// Reads the keys that mean something here; the others configure DeepRec's own sessions, and are
// named on stderr. Returns an error sentence, or "".
std::string ReadConfig(const std::string& text, Config* config) {
  group_embedding::JsonReader reader(text);
  std::string unused, options;
  reader.Require('{');
  bool more = reader.ok() && !reader.Take('}');
  while (more && reader.ok()) {
    const std::string key = reader.String();
    reader.Require(':');
    if (key == "savedmodel_dir") {
      config->path = reader.String();
    } else if (key == "signature_name") {
      config->signature = reader.String();
    } else if (key == "model_store_type" || key == "feature_store_type") {
      const std::string type = reader.String();
      if (reader.ok() && type != "local") {
        return "model_config, '" + key + "': expected 'local', got '" + type + "'";
      }
    } else if (key == "intra_op_parallelism_threads") {
      options += ", \"threads\": " + std::to_string(reader.Integer());
    } else if (key == "inter_op_parallelism_threads") {
      options += ", \"inter_op_threads\": " + std::to_string(reader.Integer());
    } else {
      unused += (unused.empty() ? "" : ", ") + key;
      reader.Skip();
    }
    more = reader.Take(',');
    if (!more) reader.Require('}');
  }
  if (!reader.ok() || !reader.AtEnd()) {
    return "model_config: expected one JSON object, got another text at byte " +
           std::to_string(reader.at());
  }
  if (config->path.empty()) return "model_config: expected 'savedmodel_dir', a SavedModel's folder";
  if (!unused.empty()) {
    std::fprintf(stderr, "libge_serving: model_config: not used here: %s\n", unused.c_str());
  }
  config->options = "{" + (options.empty() ? "" : options.substr(2)) + "}";
  return "";
}

// Gives the caller a copy, which it frees with free().
int Give(const std::string& bytes, int code, void** output, int* size) {
  *output = std::malloc(bytes.size() + 1);
  if (*output == nullptr) {
    *size = 0;
    return kError;
  }
  std::memcpy(*output, bytes.c_str(), bytes.size() + 1);
  *size = static_cast<int>(bytes.size());
  return code;
}

// Takes over an error of the C interface.
std::string Sentence(char* error) {
  const std::string sentence = error == nullptr ? "out of memory" : error;
  ge_serving_free(error);
  return sentence;
}

// response: a PredictResponse. Returns an error sentence, or "".
std::string Predict(const Processor& processor, std::string_view message, std::string* response) {
  PredictRequest request;
  std::string wrong = Read(message, &request);
  if (!wrong.empty()) return wrong;
  std::vector<GeTensor> inputs;
  for (const auto& [name, array] : request.inputs) inputs.push_back(array.AsTensor(name.c_str()));
  std::vector<const char*> outputs;
  for (const std::string& name : request.outputs) outputs.push_back(name.c_str());
  const std::string& signature =
      request.signature.empty() ? processor.signature : request.signature;
  GeResponse* answer = nullptr;
  char* error = nullptr;
  if (ge_serving_predict(processor.model, signature.c_str(), inputs.data(), inputs.size(),
                         outputs.data(), outputs.size(), &answer, &error) != GE_OK) {
    return Sentence(error);
  }
  const std::unique_ptr<GeResponse, void (*)(GeResponse*)> owned(answer, ge_serving_free_response);
  for (size_t i = 0; wrong.empty() && i < ge_serving_num_outputs(answer); ++i) {
    wrong = AppendOutput(*ge_serving_output(answer, i), response);
  }
  if (response->size() > 0x7fffffff) return "expected an answer below 2 GiB";
  return wrong;
}

}  // namespace
}  // namespace ge_serving

using ge_serving::Processor;

#define GE_EXPORT extern "C" __attribute__((visibility("default")))

// model_entry: DeepRec leaves it empty. state: 0, or -1 with NULL returned and the reason on
// stderr.
GE_EXPORT void* initialize(const char* /*model_entry*/, const char* model_config, int* state) try {
  ge_serving::Config config;
  std::string wrong = ge_serving::ReadConfig(model_config == nullptr ? "" : model_config, &config);
  auto processor = std::make_unique<Processor>();
  char* error = nullptr;
  if (wrong.empty() && ge_serving_open(config.path.c_str(), config.options.c_str(),
                                       &processor->model, &error) != GE_OK) {
    wrong = ge_serving::Sentence(error);
  }
  *state = wrong.empty() ? 0 : -1;
  if (!wrong.empty()) {
    std::fprintf(stderr, "libge_serving: %s\n", wrong.c_str());
    return nullptr;
  }
  processor->path = config.path;
  processor->signature = config.signature;
  return processor.release();
} catch (const std::bad_alloc&) {
  *state = -1;
  return nullptr;
}

// Returns 200 and a PredictResponse, or 500 and a sentence. An empty request is answered with the
// JSON of ge_serving_info.
GE_EXPORT int process(void* model_buf, const void* input_data, int input_size, void** output_data,
                      int* output_size) try {
  const auto give = [&](const std::string& bytes, int code) {
    return ge_serving::Give(bytes, code, output_data, output_size);
  };
  if (model_buf == nullptr || input_size < 0 || (input_data == nullptr && input_size > 0)) {
    return give("process: expected a model and the bytes of a request", ge_serving::kError);
  }
  const auto& processor = *static_cast<const Processor*>(model_buf);
  if (input_size == 0) {
    char *json = nullptr, *error = nullptr;
    if (ge_serving_info(processor.model, &json, &error) != GE_OK) {
      return give(ge_serving::Sentence(error), ge_serving::kError);
    }
    const std::unique_ptr<char, void (*)(char*)> owned(json, ge_serving_free);
    return give(json, ge_serving::kOk);
  }
  std::string response;
  const std::string wrong = ge_serving::Predict(
      processor, {static_cast<const char*>(input_data), static_cast<size_t>(input_size)},
      &response);
  return wrong.empty() ? give(response, ge_serving::kOk) : give(wrong, ge_serving::kError);
} catch (const std::bad_alloc&) {
  *output_data = nullptr;
  *output_size = 0;
  return ge_serving::kError;
}

// Returns 200 and a ServingModelInfo, or 500.
GE_EXPORT int get_serving_model_info(void* model_buf, void** output_data, int* output_size) try {
  if (model_buf == nullptr) {
    return ge_serving::Give("get_serving_model_info: expected a model, got NULL",
                            ge_serving::kError, output_data, output_size);
  }
  std::string info;
  ge_serving::AppendBytes(1, static_cast<const Processor*>(model_buf)->path, &info);
  return ge_serving::Give(info, ge_serving::kOk, output_data, output_size);
} catch (const std::bad_alloc&) {
  *output_data = nullptr;
  *output_size = 0;
  return ge_serving::kError;
}
