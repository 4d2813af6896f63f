// Answers of one loaded model.
#pragma once

#include "serving/server/models/gate.h"
#include "serving/server/models/served_model.h"
#include "tensorflow_serving/apis/classification.pb.h"
#include "tensorflow_serving/apis/predict.pb.h"
#include "tensorflow_serving/apis/regression.pb.h"

namespace group_embedding::server {

// deadline: of the request. most_bytes: of one input tensor. The answer's model_spec has the
// version that was computed from.
Status AnswerPredict(const ServedModel& served, Deadline deadline, int64_t most_bytes,
                     const tensorflow::serving::PredictRequest& message,
                     tensorflow::serving::PredictResponse* answer);
Status AnswerClassify(const ServedModel& served, Deadline deadline,
                      const tensorflow::serving::ClassificationRequest& message,
                      tensorflow::serving::ClassificationResponse* answer);
Status AnswerRegress(const ServedModel& served, Deadline deadline,
                     const tensorflow::serving::RegressionRequest& message,
                     tensorflow::serving::RegressionResponse* answer);

}  // namespace group_embedding::server
