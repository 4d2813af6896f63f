// The shapes of what a group's lookup gives.
#pragma once

#include <string>
#include <vector>

#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

// Attributes of an op come from a graph that anybody may have written.

// A dimension for each of `dims`, tables' attribute of that name.
inline absl::Status GetDims(tensorflow::shape_inference::InferenceContext* context,
                            std::vector<int32_t>* dims) {
  TF_RETURN_IF_ERROR(context->GetAttr("dims", dims));
  for (const int32_t dim : *dims) {
    if (dim < 1) {
      return absl::InvalidArgumentError("dims: expected positive numbers, got " +
                                        std::to_string(dim));
    }
  }
  return absl::OkStatus();
}

// Refuses an op whose attributes ask for another number of outputs than it has.
inline absl::Status CheckNumOutputs(tensorflow::shape_inference::InferenceContext* context,
                                    int64_t expected) {
  if (context->num_outputs() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError("expected attributes of an op with " +
                                    std::to_string(context->num_outputs()) + " outputs, got " +
                                    std::to_string(expected));
}

// Sets the output shapes of an op with the attributes dims, table_of_feature and concat: one
// [samples, dim] per feature, or one [samples, sum of dims]. num_outputs: set to their number;
// `num_others` outputs follow them.
inline absl::Status SetGroupOutputs(tensorflow::shape_inference::InferenceContext* context,
                                    int num_others, int* num_outputs) {
  using ::tensorflow::shape_inference::InferenceContext;
  std::vector<int32_t> dims, table_of_feature;
  bool concat;
  TF_RETURN_IF_ERROR(GetDims(context, &dims));
  TF_RETURN_IF_ERROR(context->GetAttr("table_of_feature", &table_of_feature));
  TF_RETURN_IF_ERROR(context->GetAttr("concat", &concat));
  *num_outputs = concat ? 1 : static_cast<int>(table_of_feature.size());
  TF_RETURN_IF_ERROR(CheckNumOutputs(context, int64_t{*num_outputs} + num_others));
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
