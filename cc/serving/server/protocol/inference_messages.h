// Messages of the Open Inference Protocol (KServe's version 2, Triton's) as those of TensorFlow
// Serving, and back.
#pragma once

#include <string>

#include "inference/grpc_service.pb.h"
#include "serving/server/models/status.h"
#include "tensorflow_serving/apis/predict.pb.h"

namespace group_embedding::server {

// "FP32" of float32. "": the protocol has no such type.
std::string DatatypeOf(int32_t dtype);

// Sets the dtype of a datatype of the protocol.
Status ReadDatatype(const std::string& name, tensorflow::TensorProto* tensor);

// Appends the elements as bytes: strings with their lengths in front.
void WriteContent(const tensorflow::TensorProto& tensor, std::string* raw);

// Fills the spec of a model; INVALID_ARGUMENT: the version is no number.
Status ReadSpec(const std::string& name, const std::string& version,
                tensorflow::serving::ModelSpec* spec);

// Errors name the input.
Status ToPredict(const inference::ModelInferRequest& request,
                 tensorflow::serving::PredictRequest* predict);

// Outputs are bytes, in `raw_output_contents`, in the order in which the request names them.
Status ToInfer(const tensorflow::serving::PredictResponse& predict,
               const inference::ModelInferRequest& request, inference::ModelInferResponse* answer);

}  // namespace group_embedding::server
