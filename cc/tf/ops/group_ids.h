// The attributes and the shapes of ops that make one batch of the ids of many features.
#pragma once

#include "tensorflow/core/framework/shape_inference.h"

#define GROUP_IDS_ATTRS                                               \
  Attr("value_types: list({int32, int64, uint32, uint64}) >= 1")      \
      .Attr("partition_types: list({int32, int64}) >= 0")             \
      .Attr("weight_partition_types: list({int32, int64}) >= 0")      \
      .Attr("num_features: int >= 1")                                 \
      .Attr("num_sparse: int >= 0")                                   \
      .Attr("num_weighted: int >= 0")                                 \
      .Attr("layouts: list({'sparse', 'ragged', 'dense', 'single'})") \
      .Attr("weighted_features: list(int)")                           \
      .Attr("feature_names: list(string)")                            \
      .Attr("keyed_features: list(int) = []")

namespace group_embedding {

inline absl::Status GroupIdsShape(tensorflow::shape_inference::InferenceContext* context) {
  using ::tensorflow::shape_inference::InferenceContext;
  int64_t num_features;
  TF_RETURN_IF_ERROR(context->GetAttr("num_features", &num_features));
  context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
  context->set_output(1, context->Matrix(num_features, 2));
  return absl::OkStatus();
}

}  // namespace group_embedding
