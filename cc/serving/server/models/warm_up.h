// TensorFlow Serving's warm-up: requests that a model answers before its first client's.
#pragma once

#include "serving/server/models/served_model.h"

namespace group_embedding::server {

// Sends the requests in assets.extra/tf_serving_warmup_requests, if the SavedModel has the file: a
// TFRecord file of PredictionLog. A damaged file, or a request that fails, is an error.
Status SendWarmUpRequests(const ServedModel& served, int64_t most_bytes);

}  // namespace group_embedding::server
