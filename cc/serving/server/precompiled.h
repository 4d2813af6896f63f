// Headers that most files of the server include: compiled once, to save minutes.
#pragma once

#include <rapidjson/document.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_serving/apis/classification.pb.h"
#include "tensorflow_serving/apis/get_model_metadata.pb.h"
#include "tensorflow_serving/apis/get_model_status.pb.h"
#include "tensorflow_serving/apis/predict.pb.h"
#include "tensorflow_serving/apis/prediction_log.pb.h"
#include "tensorflow_serving/apis/regression.pb.h"
