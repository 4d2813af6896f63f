// The functions of ge_serving.h as the library of one TensorFlow has them. libge_serving finds
// them by name in the library that fits the TensorFlow it has loaded, and passes its calls on.
#pragma once

#include "serving/c_api/ge_serving.h"

struct GeServingFunctions {
  decltype(&ge_serving_open) open;
  decltype(&ge_serving_close) close;
  decltype(&ge_serving_predict) predict;
  decltype(&ge_serving_response_version) response_version;
  decltype(&ge_serving_num_outputs) num_outputs;
  decltype(&ge_serving_output) output;
  decltype(&ge_serving_free_response) free_response;
  decltype(&ge_serving_signatures) signatures;
  decltype(&ge_serving_version) version;
  decltype(&ge_serving_info) info;
  decltype(&ge_serving_apply) apply;
  decltype(&ge_serving_rollback) rollback;
  decltype(&ge_serving_predict_within) predict_within;
};

// The version of this struct: all libraries of one build have the same.
inline constexpr int kServingFunctionsVersion = 3;

extern "C" {
// Null: another version than that.
const GeServingFunctions* GroupEmbeddingServingFunctions(int version);
}
