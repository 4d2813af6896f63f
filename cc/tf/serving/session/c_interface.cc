// The C interface of served models, between its plain structs and TensorFlow's tensors.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "serving/c_api/serving_functions.h"
#include "tf/serving/session/served_model.h"
#include "tf/support/embedding_table_resource.h"

using ::group_embedding::Answer;
using ::group_embedding::NamedTensors;
using ::group_embedding::ServedModel;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

struct GeModel {
  std::unique_ptr<ServedModel> served;
};

struct GeResponse {
  Answer answer;
  std::vector<GeTensor> outputs;
  std::vector<std::vector<int64_t>> dims;
  std::vector<std::vector<GeString>> strings;
};

namespace {

char* Copy(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

// Runs `body`, which returns a status, and whatever it throws is one too: no exception may reach C.
template <typename Body>
GeCode Report(char** error, const Body& body) {
  const absl::Status status = group_embedding::CatchErrors(body);
  if (status.ok()) return GE_OK;
  if (error != nullptr) *error = Copy(std::string(status.message()));
  return static_cast<GeCode>(status.code());
}

absl::Status NotNull(const void* pointer, const char* name) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + ": expected a pointer, got NULL");
}

// Numbers of somebody else.
class BorrowedNumbers : public tensorflow::TensorBuffer {
 public:
  BorrowedNumbers(const void* data, size_t bytes)
      : TensorBuffer(const_cast<void*>(data)), bytes_(bytes) {}

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
  }

 private:
  const size_t bytes_;
};

// A tensor of numbers where they are, or of a copy where elements of their size cannot be.
Tensor TensorOf(const GeTensor& given, tensorflow::DataType dtype, const TensorShape& shape) {
  const auto alignment = static_cast<uintptr_t>(std::min(tensorflow::DataTypeSize(dtype), 8));
  if (reinterpret_cast<uintptr_t>(given.data) % alignment == 0) {
    auto* numbers = new BorrowedNumbers(given.data, given.bytes);
    Tensor tensor(dtype, shape, numbers);
    numbers->Unref();
    return tensor;
  }
  Tensor tensor(dtype, shape);
  std::memcpy(tensor.data(), given.data, given.bytes);
  return tensor;
}

// Numbers stay where they are given: the tensor lives no longer than they do.
absl::Status ReadTensor(const GeTensor& given, Tensor* tensor) {
  TF_RETURN_IF_ERROR(NotNull(given.name, "the name of an input"));
  const std::string where = "input '" + std::string(given.name) + "': expected ";
  if (!tensorflow::DataType_IsValid(given.dtype)) {
    return absl::InvalidArgumentError(where + "a DataType of TensorFlow, got " +
                                      std::to_string(given.dtype));
  }
  const auto dtype = static_cast<tensorflow::DataType>(given.dtype);
  const bool is_string = dtype == tensorflow::DT_STRING;
  const int64_t element = is_string ? sizeof(GeString) : tensorflow::DataTypeSize(dtype);
  if (element == 0 || tensorflow::IsRefType(dtype)) {
    return absl::InvalidArgumentError(where + "numbers or strings, got " +
                                      tensorflow::DataTypeString(dtype));
  }
  if (given.rank < 0 || given.rank > 254) {
    return absl::InvalidArgumentError(where + "rank 0 to 254, got " + std::to_string(given.rank));
  }
  if (given.rank > 0) TF_RETURN_IF_ERROR(NotNull(given.dims, given.name));
  TensorShape shape;
  for (int32_t d = 0; d < given.rank; ++d) {
    if (given.dims[d] < 0 || !shape.AddDimWithStatus(given.dims[d]).ok()) {
      return absl::InvalidArgumentError(where + "a shape of fewer than 2^63 elements, got size " +
                                        std::to_string(given.dims[d]));
    }
  }
  const int64_t count = shape.num_elements();
  if (count > (int64_t{1} << 40) || static_cast<size_t>(count * element) != given.bytes) {
    return absl::InvalidArgumentError(where + std::to_string(count) + " elements of shape " +
                                      shape.DebugString() + ", got " + std::to_string(given.bytes) +
                                      " bytes");
  }
  if (count > 0) TF_RETURN_IF_ERROR(NotNull(given.data, given.name));
  if (is_string || count == 0) *tensor = Tensor(dtype, shape);
  if (is_string) {
    const auto* strings = static_cast<const GeString*>(given.data);
    auto to = tensor->flat<tstring>();
    for (int64_t i = 0; i < count; ++i) {
      if (strings[i].size > 0) TF_RETURN_IF_ERROR(NotNull(strings[i].data, given.name));
      to(i).assign(strings[i].data == nullptr ? "" : strings[i].data, strings[i].size);
    }
  } else if (count > 0) {
    *tensor = TensorOf(given, dtype, shape);
  }
  return absl::OkStatus();
}

// Points the response's outputs to the answer's tensors, which it keeps.
void Describe(GeResponse* response) {
  const size_t count = response->answer.outputs.size();
  response->dims.resize(count);
  response->strings.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const auto& [name, tensor] = response->answer.outputs[i];
    const auto sizes = tensor.shape().dim_sizes();
    response->dims[i].assign(sizes.begin(), sizes.end());
    GeTensor output = {name.c_str(),  static_cast<int32_t>(tensor.dtype()),
                       tensor.dims(), response->dims[i].data(),
                       tensor.data(), tensor.TotalBytes()};
    if (tensor.dtype() == tensorflow::DT_STRING) {
      const auto strings = tensor.flat<tstring>();
      for (int64_t s = 0; s < strings.size(); ++s) {
        response->strings[i].push_back({strings(s).data(), strings(s).size()});
      }
      output.data = response->strings[i].data();
      output.bytes = response->strings[i].size() * sizeof(GeString);
    }
    response->outputs.push_back(output);
  }
}

GeCode Open(const char* path, const char* options, GeModel** model, char** error) {
  return Report(error, [&]() -> absl::Status {
    TF_RETURN_IF_ERROR(NotNull(path, "path"));
    TF_RETURN_IF_ERROR(NotNull(model, "model"));
    group_embedding::ServingOptions read;
    const ::group_embedding::Status wrong =
        group_embedding::ReadOptions(options == nullptr ? "" : options, &read);
    if (!wrong.ok()) return absl::InvalidArgumentError(wrong.message());
    auto opened = std::make_unique<GeModel>();
    TF_RETURN_IF_ERROR(ServedModel::Open(path, read, &opened->served));
    *model = opened.release();
    return absl::OkStatus();
  });
}

void Close(GeModel* model) { delete model; }

GeCode PredictWithin(GeModel* model, const char* signature, const GeTensor* inputs,
                     size_t num_inputs, const char* const* outputs, size_t num_outputs,
                     int64_t timeout_us, GeIsCancelled is_cancelled, void* argument,
                     GeResponse** response, char** error) {
  return Report(error, [&]() -> absl::Status {
    group_embedding::Deadline deadline;
    TF_RETURN_IF_ERROR(NotNull(model, "model"));
    TF_RETURN_IF_ERROR(NotNull(response, "response"));
    if (timeout_us < 0) {
      return absl::InvalidArgumentError("timeout_us: expected at least 0, got " +
                                        std::to_string(timeout_us));
    }
    deadline.Shorten(std::chrono::microseconds(timeout_us));
    if (num_inputs > 0) TF_RETURN_IF_ERROR(NotNull(inputs, "inputs"));
    if (num_outputs > 0) TF_RETURN_IF_ERROR(NotNull(outputs, "outputs"));
    NamedTensors tensors;
    for (size_t i = 0; i < num_inputs; ++i) {
      Tensor tensor;
      TF_RETURN_IF_ERROR(ReadTensor(inputs[i], &tensor));
      tensors.emplace_back(inputs[i].name, std::move(tensor));
    }
    std::vector<std::string> names;
    for (size_t i = 0; i < num_outputs; ++i) {
      TF_RETURN_IF_ERROR(NotNull(outputs[i], "the name of an output"));
      names.push_back(outputs[i]);
    }
    auto made = std::make_unique<GeResponse>();
    std::function<bool()> is_gone;
    if (is_cancelled != nullptr) is_gone = [=] { return is_cancelled(argument) != 0; };
    TF_RETURN_IF_ERROR(model->served->Predict(signature == nullptr ? "" : signature, tensors,
                                              std::move(names), deadline, std::move(is_gone),
                                              &made->answer));
    Describe(made.get());
    *response = made.release();
    return absl::OkStatus();
  });
}

GeCode Predict(GeModel* model, const char* signature, const GeTensor* inputs, size_t num_inputs,
               const char* const* outputs, size_t num_outputs, GeResponse** response,
               char** error) {
  return PredictWithin(model, signature, inputs, num_inputs, outputs, num_outputs, INT64_MAX,
                       nullptr, nullptr, response, error);
}

int64_t ResponseVersion(const GeResponse* response) { return response->answer.version; }
size_t NumOutputs(const GeResponse* response) { return response->outputs.size(); }
const GeTensor* Output(const GeResponse* response, size_t i) {
  return i < response->outputs.size() ? &response->outputs[i] : nullptr;
}
void FreeResponse(GeResponse* response) { delete response; }

// Gives the caller a text of the model.
template <typename Text>
GeCode GiveText(GeModel* model, char** json, char** error, const Text& text) {
  return Report(error, [&]() -> absl::Status {
    TF_RETURN_IF_ERROR(NotNull(model, "model"));
    TF_RETURN_IF_ERROR(NotNull(json, "json"));
    *json = Copy(text());
    return *json == nullptr ? group_embedding::OutOfMemory(std::bad_alloc()) : absl::OkStatus();
  });
}

GeCode Signatures(GeModel* model, char** json, char** error) {
  return GiveText(model, json, error, [&] { return model->served->SignaturesJson(); });
}

GeCode Info(GeModel* model, char** json, char** error) {
  return GiveText(model, json, error, [&] { return model->served->InfoJson(); });
}

int64_t Version(GeModel* model) { return model->served->version(); }

GeCode Apply(GeModel* model, const char* folder, char** error) {
  return Report(error, [&]() -> absl::Status {
    TF_RETURN_IF_ERROR(NotNull(model, "model"));
    TF_RETURN_IF_ERROR(NotNull(folder, "folder"));
    return model->served->Apply(folder);
  });
}

GeCode Rollback(GeModel* model, char** error) {
  return Report(error, [&]() -> absl::Status {
    TF_RETURN_IF_ERROR(NotNull(model, "model"));
    return model->served->Rollback();
  });
}

}  // namespace

extern "C" const GeServingFunctions* GroupEmbeddingServingFunctions(int version) {
  static const GeServingFunctions functions = {
      Open,       Close,   Predict, ResponseVersion, NumOutputs, Output,       FreeResponse,
      Signatures, Version, Info,    Apply,           Rollback,   PredictWithin};
  return version == kServingFunctionsVersion ? &functions : nullptr;
}
