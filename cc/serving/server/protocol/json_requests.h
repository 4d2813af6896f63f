// TensorFlow Serving's REST bodies as messages.
#pragma once

#include <rapidjson/document.h>

#include <string>

#include "serving/server/protocol/signatures.h"
#include "tensorflow_serving/apis/input.pb.h"
#include "tensorflow_serving/apis/predict.pb.h"

namespace group_embedding::server {

// How the inputs were given, and how the answer is: a value per sample, or a tensor per name.
enum class JsonFormat { kRow, kColumn };

// The "signature_name" of a body; "" without one. Bodies are objects: see ParseObject.
Status ReadSignatureName(const rapidjson::Value& body, std::string* name);

// Fills the inputs from "instances" (row) or "inputs" (column). Numbers get the dtypes of the
// signature; {"b64": "..."} is a string of bytes. Errors name the input and the instance.
Status ReadPredictBody(const rapidjson::Value& body, const Signature& signature,
                       tensorflow::serving::PredictRequest* message, JsonFormat* format);

// Fills the input from "examples" and "context", for Classify and Regress.
Status ReadExamplesBody(const rapidjson::Value& body, tensorflow::serving::Input* input);

}  // namespace group_embedding::server
