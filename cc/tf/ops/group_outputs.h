// The shapes of what a group's lookup gives.
#pragma once

#include <vector>

#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

// Of an op with the attributes dims, table_of_feature and concat: one [samples, dim] per feature,
// or one [samples, sum of dims]. num_outputs: gets how many that is.
inline absl::Status SetGroupOutputs(tensorflow::shape_inference::InferenceContext* context,
                                    int* num_outputs) {
  using ::tensorflow::shape_inference::InferenceContext;
  std::vector<int32_t> dims, table_of_feature;
  bool concat;
  TF_RETURN_IF_ERROR(context->GetAttr("dims", &dims));
  TF_RETURN_IF_ERROR(context->GetAttr("table_of_feature", &table_of_feature));
  TF_RETURN_IF_ERROR(context->GetAttr("concat", &concat));
  *num_outputs = concat ? 1 : static_cast<int>(table_of_feature.size());
  int64_t width = 0;
  for (size_t f = 0; f < table_of_feature.size(); ++f) {
    const int32_t table = table_of_feature[f];
    if (table < 0 || table >= static_cast<int32_t>(dims.size())) {
      return absl::InvalidArgumentError("table_of_feature: expected indices into dims");
    }
    width += dims[table];
    if (!concat) {
      context->set_output(f, context->Matrix(InferenceContext::kUnknownDim, dims[table]));
    }
  }
  if (concat) context->set_output(0, context->Matrix(InferenceContext::kUnknownDim, width));
  return absl::OkStatus();
}

}  // namespace group_embedding
