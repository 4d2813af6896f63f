// The functions of ge_serving.h. TensorFlow, the library of served models and the op library that
// it is linked against are loaded with RTLD_LOCAL and RTLD_DEEPBIND: their symbols, protobuf's
// among them, are not those of the program, which may have its own.
#include "serving/c_api/ge_serving.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "serving/c_api/find_tensorflow.h"
#include "serving/c_api/serving_functions.h"
#include "serving/session/options.h"

namespace ge_serving {
namespace {

// What is loaded stays until the process ends: TensorFlow cannot be unloaded.
struct Loaded {
  std::mutex mutex;
  std::string folder;
  const GeServingFunctions* functions = nullptr;
};

Loaded& TheLoaded() {
  static auto* loaded = new Loaded;
  return *loaded;
}

std::string LastError() {
  const char* error = dlerror();
  return error == nullptr ? "no message" : error;
}

// "2.15" of "2.15.1".
std::string MinorOf(const std::string& version) {
  const size_t dot = version.find('.');
  return version.substr(0, version.find('.', dot == version.npos ? dot : dot + 1));
}

std::string Load(const std::string& folder, const GeServingFunctions** functions) {
  constexpr int kHow = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
  const std::string library = folder + "/" + kTensorFlowLibrary;
  void* tensorflow = dlopen(library.c_str(), kHow);
  if (tensorflow == nullptr) return "'" + library + "' does not load: " + LastError();
  const auto version = reinterpret_cast<const char* (*)()>(dlsym(tensorflow, "TF_Version"));
  if (version == nullptr) return "'" + library + "': expected TensorFlow's C interface";
  const std::string serving =
      OwnFolder() + "/_group_embedding_serving.tf" + MinorOf(version()) + ".so";
  if (!IsFile(serving)) {
    return "expected '" + serving + "', the library for TensorFlow " + version() +
           ": build group_embedding for it";
  }
  void* handle = dlopen(serving.c_str(), kHow);
  if (handle == nullptr) return "'" + serving + "' does not load: " + LastError();
  const auto find = reinterpret_cast<decltype(&GroupEmbeddingServingFunctions)>(
      dlsym(handle, "GroupEmbeddingServingFunctions"));
  *functions = find == nullptr ? nullptr : find(kServingFunctionsVersion);
  return *functions == nullptr ? "'" + serving + "': expected a library of this build" : "";
}

// Loads TensorFlow on the first call. A process has one.
std::string Prepare(const std::string& stated, const GeServingFunctions** functions) {
  Loaded& loaded = TheLoaded();
  std::lock_guard<std::mutex> lock(loaded.mutex);
  if (loaded.functions == nullptr) {
    std::string folder;
    std::string error = FindTensorFlow(stated, &folder);
    if (error.empty()) error = Load(folder, &loaded.functions);
    if (!error.empty()) return error;
    loaded.folder = folder;
  } else if (!stated.empty() && stated != loaded.folder) {
    return "expected the TensorFlow that is loaded, '" + loaded.folder + "', got '" + stated + "'";
  }
  *functions = loaded.functions;
  return "";
}

// Needs an open model: TensorFlow is loaded then.
const GeServingFunctions& Functions() { return *TheLoaded().functions; }

GeCode Fail(GeCode code, const std::string& sentence, char** error) {
  if (error != nullptr) *error = strdup(sentence.c_str());
  return code;
}

}  // namespace
}  // namespace ge_serving

using ge_serving::Functions;

#define GE_EXPORT extern "C" __attribute__((visibility("default")))

GE_EXPORT GeCode ge_serving_open(const char* path, const char* options, GeModel** model,
                                 char** error) try {
  group_embedding::ServingOptions read;
  std::string wrong =
      group_embedding::ReadOptions(options == nullptr ? "" : options, &read).message();
  if (!wrong.empty()) return ge_serving::Fail(GE_INVALID_ARGUMENT, wrong, error);
  const GeServingFunctions* functions = nullptr;
  wrong = ge_serving::Prepare(read.tensorflow, &functions);
  if (!wrong.empty()) return ge_serving::Fail(GE_FAILED_PRECONDITION, wrong, error);
  return functions->open(path, options, model, error);
} catch (const std::bad_alloc&) {
  return GE_RESOURCE_EXHAUSTED;
}

GE_EXPORT void ge_serving_close(GeModel* model) {
  if (model != nullptr) Functions().close(model);
}

GE_EXPORT GeCode ge_serving_predict(GeModel* model, const char* signature, const GeTensor* inputs,
                                    size_t num_inputs, const char* const* outputs,
                                    size_t num_outputs, GeResponse** response, char** error) {
  return Functions().predict(model, signature, inputs, num_inputs, outputs, num_outputs, response,
                             error);
}

GE_EXPORT GeCode ge_serving_predict_within(GeModel* model, const char* signature,
                                           const GeTensor* inputs, size_t num_inputs,
                                           const char* const* outputs, size_t num_outputs,
                                           int64_t timeout_us, GeIsCancelled is_cancelled,
                                           void* argument, GeResponse** response, char** error) {
  return Functions().predict_within(model, signature, inputs, num_inputs, outputs, num_outputs,
                                    timeout_us, is_cancelled, argument, response, error);
}

GE_EXPORT int64_t ge_serving_response_version(const GeResponse* response) {
  return Functions().response_version(response);
}

GE_EXPORT size_t ge_serving_num_outputs(const GeResponse* response) {
  return Functions().num_outputs(response);
}

GE_EXPORT const GeTensor* ge_serving_output(const GeResponse* response, size_t i) {
  return Functions().output(response, i);
}

GE_EXPORT void ge_serving_free_response(GeResponse* response) {
  if (response != nullptr) Functions().free_response(response);
}

GE_EXPORT GeCode ge_serving_signatures(GeModel* model, char** json, char** error) {
  return Functions().signatures(model, json, error);
}

GE_EXPORT int64_t ge_serving_version(GeModel* model) { return Functions().version(model); }

GE_EXPORT GeCode ge_serving_info(GeModel* model, char** json, char** error) {
  return Functions().info(model, json, error);
}

GE_EXPORT GeCode ge_serving_apply(GeModel* model, const char* folder, char** error) {
  return Functions().apply(model, folder, error);
}

GE_EXPORT GeCode ge_serving_rollback(GeModel* model, char** error) {
  return Functions().rollback(model, error);
}

GE_EXPORT void ge_serving_free(char* text) { std::free(text); }
