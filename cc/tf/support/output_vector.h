// An output of numbers that the core has as a vector.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {

// Allocates the output and converts the values. shape: of as many elements.
template <typename To>
absl::Status OutputVector(tensorflow::OpKernelContext* context, int index,
                          const std::vector<int64_t>& values,
                          const tensorflow::TensorShape& shape) {
  tensorflow::Tensor* output;
  TF_RETURN_IF_ERROR(context->allocate_output(index, shape, &output));
  std::transform(values.begin(), values.end(), output->flat<To>().data(),
                 [](int64_t value) { return static_cast<To>(value); });
  return absl::OkStatus();
}

}  // namespace group_embedding
