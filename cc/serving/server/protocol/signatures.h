// The signatures of a model, read from the JSON text of ge_serving_signatures.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "serving/server/models/serving_library.h"
#include "tensorflow_serving/apis/get_model_metadata.pb.h"

namespace group_embedding::server {

struct TensorInfo {
  std::string tensor_name;                    // in the graph
  int32_t dtype = 0;                          // TensorFlow's DataType
  std::optional<std::vector<int64_t>> shape;  // -1: any size; none: any rank
  // An input that is a part of a ragged or sparse tensor: which part, as in
  // ge_serving_signatures, the input that is the first part, and the level of row splits.
  std::string part, of;
  int level = 0;
};

struct Signature {
  std::string method_name;
  std::map<std::string, TensorInfo> inputs, outputs;
};

using Signatures = std::map<std::string, Signature>;

Status ParseSignatures(const std::string& json, Signatures* signatures);

// The signature of a request; "" is serving_default. The error lists the model's signatures.
// The input of a signature. INVALID_ARGUMENT names those that it has.
Status FindInput(const Signature& signature, const std::string& name, const TensorInfo** input);

Status FindSignature(const Signatures& signatures, const std::string& name,
                     const Signature** signature);

void ToProto(const Signatures& signatures, tensorflow::serving::SignatureDefMap* proto);

}  // namespace group_embedding::server
