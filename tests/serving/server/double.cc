// A library with the C interface of libge_serving, without TensorFlow: what the server's tests load
// in its place. Its models compute a few things that the tests know, and its deltas are numbers.
//
// Signatures: serving_default (x float [-1, 3], n int64 [-1] -> y float [-1]: the row's sum + n,
// of which -1313 fails),
// same (t -> t, of any dtype), strings (s -> s_bytes, length), classify, regress, slow (ms -> ms:
// sleeps for each value), left (n -> us int64: how long the sender waits), held (the same, once
// there is a file `go` in the SavedModel's folder). A file `words` in the SavedModel's folder:
// "fail" makes open fail.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "serving/c_api/ge_serving.h"

struct GeModel {
  std::string path;
  int64_t base = 0;
  std::atomic<int64_t> version{0};
  std::atomic<int64_t> previous{-1};
};

struct GeResponse {
  int64_t version = 0;
  std::deque<std::string> memory;
  std::deque<std::vector<int64_t>> dims;
  std::deque<std::string> names;
  std::vector<GeTensor> outputs;

  void Add(const std::string& name, int32_t dtype, std::vector<int64_t> shape, const void* data,
           size_t bytes) {
    names.push_back(name);
    dims.push_back(std::move(shape));
    memory.emplace_back(static_cast<const char*>(data), bytes);
    outputs.push_back({names.back().c_str(), dtype, static_cast<int32_t>(dims.back().size()),
                       dims.back().data(), memory.back().data(), bytes});
  }
  // Copies the bytes of the strings, too.
  void AddStrings(const std::string& name, std::vector<int64_t> shape,
                  const std::vector<std::string>& values) {
    std::vector<GeString> strings;
    for (const std::string& value : values) {
      memory.push_back(value);
      strings.push_back({memory.back().data(), value.size()});
    }
    Add(name, GE_STRING, std::move(shape), strings.data(), strings.size() * sizeof(GeString));
  }
};

namespace {

const char kSignatures[] = R"({
 "serving_default": {"method_name": "tensorflow/serving/predict",
  "inputs": {"x": {"name": "x:0", "dtype": 1, "shape": [-1, 3]},
             "n": {"name": "n:0", "dtype": 9, "shape": [-1]}},
  "outputs": {"y": {"name": "y:0", "dtype": 1, "shape": [-1]}}},
 "same": {"method_name": "tensorflow/serving/predict",
  "inputs": {"t": {"name": "t:0", "dtype": 1, "shape": null}},
  "outputs": {"t": {"name": "t:1", "dtype": 1, "shape": null}}},
 "strings": {"method_name": "tensorflow/serving/predict",
  "inputs": {"s": {"name": "s:0", "dtype": 7, "shape": [-1]}},
  "outputs": {"s_bytes": {"name": "b:0", "dtype": 7, "shape": [-1]},
              "length": {"name": "l:0", "dtype": 9, "shape": [-1]}}},
 "slow": {"method_name": "tensorflow/serving/predict",
  "inputs": {"ms": {"name": "m:0", "dtype": 3, "shape": [-1]}},
  "outputs": {"ms": {"name": "m:1", "dtype": 3, "shape": [-1]}}},
 "left": {"method_name": "tensorflow/serving/predict",
  "inputs": {"n": {"name": "n:1", "dtype": 9, "shape": [-1]}},
  "outputs": {"us": {"name": "u:0", "dtype": 9, "shape": []}}},
 "held": {"method_name": "tensorflow/serving/predict",
  "inputs": {"n": {"name": "n:2", "dtype": 9, "shape": [-1]}},
  "outputs": {"us": {"name": "u:1", "dtype": 9, "shape": []}}},
 "classify": {"method_name": "tensorflow/serving/classify",
  "inputs": {"inputs": {"name": "e:0", "dtype": 7, "shape": [-1]}},
  "outputs": {"classes": {"name": "c:0", "dtype": 7, "shape": [-1, 2]},
              "scores": {"name": "c:1", "dtype": 1, "shape": [-1, 2]}}},
 "regress": {"method_name": "tensorflow/serving/regress",
  "inputs": {"inputs": {"name": "e:0", "dtype": 7, "shape": [-1]}},
  "outputs": {"outputs": {"name": "r:0", "dtype": 1, "shape": [-1, 1]}}}})";

GeCode Fail(GeCode code, const std::string& sentence, char** error) {
  *error = strdup(sentence.c_str());
  return code;
}

int64_t Elements(const GeTensor& tensor) {
  int64_t elements = 1;
  for (int i = 0; i < tensor.rank; ++i) elements *= tensor.dims[i];
  return elements;
}

std::vector<int64_t> Shape(const GeTensor& tensor) {
  return std::vector<int64_t>(tensor.dims, tensor.dims + tensor.rank);
}

const GeTensor* Find(const GeTensor* inputs, size_t n, const char* name) {
  for (size_t i = 0; i < n; ++i) {
    if (std::strcmp(inputs[i].name, name) == 0) return &inputs[i];
  }
  return nullptr;
}

GeCode Sum(const GeTensor* inputs, size_t n, GeResponse* response, char** error) {
  const GeTensor *x = Find(inputs, n, "x"), *add = Find(inputs, n, "n");
  if (x == nullptr || add == nullptr || n != 2) {
    return Fail(GE_INVALID_ARGUMENT, "expected inputs 'n' and 'x'", error);
  }
  if (x->dtype != GE_FLOAT || x->rank != 2 || x->dims[1] != 3) {
    return Fail(GE_INVALID_ARGUMENT, "input 'x': expected float [-1, 3]", error);
  }
  if (add->dtype != GE_INT64 || add->rank != 1 || add->dims[0] != x->dims[0]) {
    return Fail(GE_INVALID_ARGUMENT, "input 'n': expected int64 [batch]", error);
  }
  std::vector<float> y;
  const auto* values = static_cast<const int64_t*>(add->data);
  if (std::count(values, values + x->dims[0], -1313) > 0) {
    return Fail(GE_INVALID_ARGUMENT, "input 'n': -1313 is unlucky", error);
  }
  for (int64_t i = 0; i < x->dims[0]; ++i) {
    const float* row = static_cast<const float*>(x->data) + 3 * i;
    y.push_back(row[0] + row[1] + row[2] + static_cast<const int64_t*>(add->data)[i]);
  }
  response->Add("y", GE_FLOAT, {x->dims[0]}, y.data(), y.size() * sizeof(float));
  return GE_OK;
}

std::vector<std::string> Strings(const GeTensor& tensor) {
  std::vector<std::string> values;
  for (int64_t i = 0; i < Elements(tensor); ++i) {
    const GeString& string = static_cast<const GeString*>(tensor.data)[i];
    values.emplace_back(string.data, string.size);
  }
  return values;
}

void OfStrings(const std::string& signature, const GeTensor& input, GeResponse* response) {
  const std::vector<std::string> values = Strings(input);
  const auto count = static_cast<int64_t>(values.size());
  std::vector<int64_t> lengths;
  std::vector<float> scores, results;
  std::vector<std::string> classes;
  for (const std::string& value : values) {
    lengths.push_back(static_cast<int64_t>(value.size()));
    results.push_back(static_cast<float>(value.size()));
    classes.insert(classes.end(), {"short", "long"});
    scores.insert(scores.end(), {1.0f / (1 + value.size()), 0.5f});
  }
  if (signature == "strings") {
    response->AddStrings("s_bytes", Shape(input), values);
    response->Add("length", GE_INT64, {count}, lengths.data(), lengths.size() * 8);
  } else if (signature == "classify") {
    response->AddStrings("classes", {count, 2}, classes);
    response->Add("scores", GE_FLOAT, {count, 2}, scores.data(), scores.size() * 4);
  } else {
    response->Add("outputs", GE_FLOAT, {count, 1}, results.data(), results.size() * 4);
  }
}

GeCode Compute(const std::string& signature, const GeTensor* inputs, size_t n, GeResponse* response,
               char** error) {
  if (signature == "serving_default") return Sum(inputs, n, response, error);
  if (n != 1) return Fail(GE_INVALID_ARGUMENT, "expected one input", error);
  const GeTensor& input = inputs[0];
  if (signature == "same") {
    if (input.dtype == GE_STRING) {
      response->AddStrings("t", Shape(input), Strings(input));
    } else {
      response->Add("t", input.dtype, Shape(input), input.data, input.bytes);
    }
    return GE_OK;
  }
  const bool slow = signature == "slow";
  if (input.dtype != (slow ? GE_INT32 : GE_STRING)) {
    return Fail(GE_INVALID_ARGUMENT, std::string("input '") + input.name + "': wrong dtype", error);
  }
  if (!slow) {
    OfStrings(signature, input, response);
    return GE_OK;
  }
  for (int64_t i = 0; i < Elements(input); ++i) {
    const int ms = static_cast<const int32_t*>(input.data)[i];
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  }
  response->Add("ms", GE_INT32, Shape(input), input.data, input.bytes);
  return GE_OK;
}

bool Exists(const std::string& path) { return std::ifstream(path).good(); }

}  // namespace

extern "C" {

GeCode ge_serving_open(const char* path, const char* options, GeModel** model, char** error) {
  std::string word;
  std::ifstream(std::string(path) + "/words") >> word;
  if (word == "fail") return Fail(GE_DATA_LOSS, std::string("'") + path + "' is damaged", error);
  *model = new GeModel;
  (*model)->path = path;
  const char* version = std::strstr(options, "\"version\":");
  if (version != nullptr) (*model)->base = std::atoll(version + std::strlen("\"version\":"));
  (*model)->version = (*model)->base;
  return GE_OK;
}

void ge_serving_close(GeModel* model) { delete model; }

GeCode ge_serving_predict_within(GeModel* model, const char* signature, const GeTensor* inputs,
                                 size_t num_inputs, const char* const* outputs, size_t num_outputs,
                                 int64_t timeout_us, GeIsCancelled is_cancelled, void* argument,
                                 GeResponse** response, char** error) {
  auto* made = new GeResponse;
  made->version = model->version;
  GeCode code = GE_OK;
  if (std::strcmp(signature, "held") == 0) {
    for (int i = 0; i < 2000 && !Exists(model->path + "/go"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  if (std::strcmp(signature, "left") == 0 || std::strcmp(signature, "held") == 0) {
    made->Add("us", GE_INT64, {}, &timeout_us, sizeof(timeout_us));
  } else {
    code = Compute(signature, inputs, num_inputs, made, error);
  }
  if (code != GE_OK) {
    delete made;
    return code;
  }
  if (num_outputs > 0) {
    std::vector<GeTensor> kept;
    for (size_t i = 0; i < num_outputs; ++i)
      kept.push_back(*Find(made->outputs.data(), made->outputs.size(), outputs[i]));
    made->outputs = kept;
  }
  *response = made;
  return GE_OK;
}

int64_t ge_serving_response_version(const GeResponse* response) { return response->version; }
size_t ge_serving_num_outputs(const GeResponse* response) { return response->outputs.size(); }
const GeTensor* ge_serving_output(const GeResponse* response, size_t i) {
  return i < response->outputs.size() ? &response->outputs[i] : nullptr;
}
void ge_serving_free_response(GeResponse* response) { delete response; }

GeCode ge_serving_signatures(GeModel*, char** json, char**) {
  *json = strdup(kSignatures);
  return GE_OK;
}

int64_t ge_serving_version(GeModel* model) { return model->version; }

GeCode ge_serving_info(GeModel* model, char** json, char**) {
  const std::string text =
      "{\"path\": \"" + model->path + "\", \"base_version\": " + std::to_string(model->base) +
      ", \"version\": " + std::to_string(model->version) +
      ", \"previous_version\": null, \"step\": 1200, \"time\": 1.5, \"staleness_seconds\": 2.5,"
      " \"memory_bytes\": 4096, \"tables\": [{\"name\": \"<user>\", \"rows\": 10, \"dim\": 16,"
      " \"storage\": \"float32\", \"bytes\": 640}]}";
  *json = strdup(text.c_str());
  return GE_OK;
}

// The number of the delta is the folder's name; a file `damaged` in it makes it that.
GeCode ge_serving_apply(GeModel* model, const char* folder, char** error) {
  const std::string path = folder;
  const int64_t version = std::atoll(path.substr(path.rfind('/') + 1).c_str());
  if (Exists(path + "/damaged")) return Fail(GE_DATA_LOSS, "'" + path + "' is damaged", error);
  if (version <= model->version) return Fail(GE_ALREADY_EXISTS, "there already", error);
  if (version != model->version + 1) {
    return Fail(GE_FAILED_PRECONDITION, "'" + path + "' does not follow", error);
  }
  model->previous = model->version.load();
  model->version = version;
  return GE_OK;
}

GeCode ge_serving_rollback(GeModel* model, char** error) {
  if (model->previous < 0) return Fail(GE_FAILED_PRECONDITION, "no version before", error);
  model->version = model->previous.exchange(-1);
  return GE_OK;
}

void ge_serving_free(char* text) { std::free(text); }

}  // extern "C"
