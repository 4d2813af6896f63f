// Tensors between TensorFlow's protobuf and the C interface of libge_serving.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "serving/server/models/serving_library.h"
#include "tensorflow/core/framework/tensor.pb.h"

namespace group_embedding::server {

// The inputs of one request. Points into the protobuf messages where their bytes are as the library
// wants them, and owns what had to be converted.
class InputTensors {
 public:
  // most_bytes: of all tensors together, as a short message may state large shapes.
  explicit InputTensors(int64_t most_bytes) : most_bytes_(most_bytes), left_bytes_(most_bytes) {}

  // `name` and `proto` must outlive this object. Errors name the input.
  Status Add(const std::string& name, const tensorflow::TensorProto& proto);

  const std::vector<GeTensor>& tensors() const { return tensors_; }

 private:
  // Takes the bytes of a tensor from those that are left. noun: of its elements, for the error.
  Status Take(const GeTensor& tensor, int64_t elements, int64_t bytes_each, const char* noun);
  Status AddNumbers(const tensorflow::TensorProto& proto, int64_t elements, GeTensor* tensor);
  Status AddStrings(const tensorflow::TensorProto& proto, int64_t elements, GeTensor* tensor);

  const int64_t most_bytes_;
  int64_t left_bytes_;
  std::vector<GeTensor> tensors_;
  std::deque<std::vector<int64_t>> dims_;
  std::deque<std::string> converted_;
  std::deque<std::vector<GeString>> strings_;
};

// Writes an output as TensorFlow Serving does: into the field of its dtype, not tensor_content.
Status ToProto(const GeTensor& tensor, tensorflow::TensorProto* proto);

// Appends the elements of an output, whose dtype has numbers, as they are in memory.
void WriteRaw(const tensorflow::TensorProto& proto, std::string* raw);

// "int64", or "dtype 77".
std::string DtypeName(int32_t dtype);

// The product of the dims; 1 for a scalar.
int64_t NumElements(const GeTensor& tensor);

}  // namespace group_embedding::server
