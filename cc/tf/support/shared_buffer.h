// SharedBuffer: one allocation for many small outputs of an op.
//
// It saves the allocator's work per table, and on the CPU page faults as well: glibc returns freed
// memory above a threshold to the system. The threshold grows with the size of blocks, so a few
// large blocks are kept from step to step, and many small ones are not.
#pragma once

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {

// Allocates outputs [first, first + shapes.size()) of `dtype` and sets them. Each begins at a
// multiple of 256 bytes. `data`: gets where each is.
inline absl::Status AllocateOutputsTogether(tensorflow::OpKernelContext* context, int first,
                                            tensorflow::DataType dtype,
                                            const std::vector<tensorflow::TensorShape>& shapes,
                                            std::vector<void*>* data) {
  using ::tensorflow::Tensor;
  constexpr int64_t kMaxBytes = 16 << 20;  // below the most that glibc keeps, 32 MB
  const int64_t item_bytes = tensorflow::DataTypeSize(dtype);
  const int64_t alignment = 256 / item_bytes;
  auto padded = [=](const tensorflow::TensorShape& shape) {
    return (shape.num_elements() + alignment - 1) / alignment * alignment;
  };
  const size_t count = shapes.size();
  data->resize(count);
  for (size_t begin = 0, end; begin < count; begin = end) {
    int64_t size = padded(shapes[begin]);
    for (end = begin + 1; end < count; ++end) {
      const int64_t with_next = size + padded(shapes[end]);
      if (with_next * item_bytes > kMaxBytes) break;
      size = with_next;
    }
    Tensor buffer;
    TF_RETURN_IF_ERROR(context->allocate_temp(dtype, tensorflow::TensorShape({size}), &buffer,
                                              context->output_alloc_attr(first + begin)));
    int64_t at = 0;
    for (size_t i = begin; i < end; ++i) {
      Tensor output(dtype);
      if (!output.CopyFrom(buffer.Slice(at, at + shapes[i].num_elements()), shapes[i])) {
        return absl::InternalError("an output does not fit its part of a shared buffer");
      }
      (*data)[i] = output.data();
      context->set_output(first + static_cast<int>(i), output);
      at += padded(shapes[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace group_embedding
