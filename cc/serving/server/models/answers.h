// Answers of one loaded model.
#pragma once

#include <functional>

#include "serving/server/models/request.h"
#include "serving/server/models/served_model.h"
#include "tensorflow_serving/apis/classification.pb.h"
#include "tensorflow_serving/apis/predict.pb.h"
#include "tensorflow_serving/apis/regression.pb.h"

namespace group_embedding::server {

// Computes the outputs of a question: at once, or behind the gate and with others.
using Compute = std::function<Status(const Question&, Response*)>;

// most_bytes: of one input tensor. The answer's model_spec has the
// version that was computed from.
Status AnswerPredict(const ServedModel& served, const Compute& compute, int64_t most_bytes,
                     const tensorflow::serving::PredictRequest& message,
                     tensorflow::serving::PredictResponse* answer);
Status AnswerClassify(const ServedModel& served, const Compute& compute,
                      const tensorflow::serving::ClassificationRequest& message,
                      tensorflow::serving::ClassificationResponse* answer);
Status AnswerRegress(const ServedModel& served, const Compute& compute,
                     const tensorflow::serving::RegressionRequest& message,
                     tensorflow::serving::RegressionResponse* answer);

}  // namespace group_embedding::server
