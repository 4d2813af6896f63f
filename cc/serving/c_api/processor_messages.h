// The messages of DeepRec's Processor. Their fields are published in DeepRec's documentation, page
// "Processor", as serving/processor/serving/predict.proto.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "serving/c_api/ge_serving.h"

namespace ge_serving {

// An ArrayProto as a GeTensor, which points into it and into the message.
struct Array {
  int32_t dtype = 0;
  std::vector<int64_t> dims;
  std::vector<char> numbers;      // elements of dtype
  std::vector<GeString> strings;  // if dtype is GE_STRING
  GeTensor AsTensor(const char* name) const;
};

// A PredictRequest. It points into the message.
struct PredictRequest {
  std::string signature;
  std::map<std::string, Array> inputs;
  std::vector<std::string> outputs;  // all, if empty
};

// Return an error sentence, or "".
std::string Read(std::string_view message, PredictRequest* request);
// Appends an output to a PredictResponse.
std::string AppendOutput(const GeTensor& output, std::string* response);

}  // namespace ge_serving
