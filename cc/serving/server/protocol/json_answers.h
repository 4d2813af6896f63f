// Messages as TensorFlow Serving's REST answers.
#pragma once

#include <string>

#include "serving/server/protocol/json_requests.h"
#include "tensorflow_serving/apis/classification.pb.h"
#include "tensorflow_serving/apis/get_model_metadata.pb.h"
#include "tensorflow_serving/apis/get_model_status.pb.h"
#include "tensorflow_serving/apis/regression.pb.h"

namespace group_embedding::server {

// The elements of a tensor as one list; strings that are no UTF-8 as {"b64": ...}.
Status WriteFlat(const tensorflow::TensorProto& tensor, std::string* json);

// {"predictions": ...} or {"outputs": ...}. Strings of outputs whose name ends in "_bytes", and
// those that are no UTF-8, become {"b64": "..."}. Rows need one size of the first dim in all
// outputs.
Status WriteJson(const tensorflow::serving::PredictResponse& answer, JsonFormat format,
                 std::string* json);
std::string WriteJson(const tensorflow::serving::ClassificationResponse& answer);
std::string WriteJson(const tensorflow::serving::RegressionResponse& answer);
Status WriteJson(const tensorflow::serving::GetModelStatusResponse& answer, std::string* json);
Status WriteJson(const tensorflow::serving::GetModelMetadataResponse& answer, std::string* json);
// {"error": "..."}
std::string WriteError(const std::string& sentence);

}  // namespace group_embedding::server
