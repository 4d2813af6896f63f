// HandleList: an input list of an op that has handles of resources: a scalar for each, or the
// handle of one HandlePack with all of them, in a vector, which PackHandles makes.
#pragma once

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/handle_pack.h"

namespace group_embedding {

class HandleList {
 public:
  // The input list called `name`. Some of its inputs may be tables that are tensors.
  absl::Status Open(tensorflow::OpKernelContext* context, const char* name) {
    int end;
    TF_RETURN_IF_ERROR(context->op_kernel().InputRange(name, &first_, &end));
    context_ = context;
    size_ = end - first_;
    if (size_ != 1 || !is_handle(0) || context->input(first_).dims() != 1) return absl::OkStatus();
    TF_RETURN_IF_ERROR(FindResource(context, first_, &pack_));
    size_ = pack_->size();
    return pack_->CheckDevices(context);
  }

  int size() const { return size_; }
  // The index, among all inputs of the op, of the tensor that has element `i`.
  int input(int i) const { return pack_ ? first_ : first_ + i; }
  bool is_handle(int i) const { return context_->input_dtype(input(i)) == tensorflow::DT_RESOURCE; }

  // Finds the resource that handle `i` names.
  template <typename Resource>
  absl::Status Find(int i, tensorflow::core::RefCountPtr<Resource>* resource) const {
    if (pack_) return pack_->Find(context_, i, resource);
    return FindResource(context_, first_ + i, resource);
  }

 private:
  tensorflow::OpKernelContext* context_ = nullptr;
  int first_ = 0, size_ = 0;
  tensorflow::core::RefCountPtr<HandlePack> pack_;
};

}  // namespace group_embedding
