// WrittenVariables: variables that an op writes in place, found by their handles or references. An
// op finds them, locks their mutexes, checks their tensors, and then makes them writable.
#pragma once

#include <deque>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/support/handle_list.h"

namespace group_embedding {

// What a later read of a variable is given: its buffer, which the next write then leaves to the
// reader, as TensorFlow's dense updates do; or a copy, so that no write moves the variable, as
// sparse updates do.
enum class LaterReads { kShare, kCopy };

class WrittenVariables {
 public:
  // To be called before so many variables are added.
  void Reserve(size_t size) {
    written_.reserve(size);
    mutexes_.reserve(size);
  }

  // Adds element `i` of a list, and returns NotFound if it is not initialized.
  absl::Status Add(tensorflow::OpKernelContext* context, const HandleList& list, int i);

  const std::vector<tensorflow::mutex*>& mutexes() const { return mutexes_; }

  // The variables in the order in which they were added. To be called with `mutexes` locked.
  const tensorflow::Tensor& Value(tensorflow::OpKernelContext* context, size_t at);

  // Reads where the buffers of all variables are: one after the other, without other work between,
  // the processor fetches many at once, in less than half the time.
  void Touch() const;

  // Sees to it that nobody but the variable holds its buffer: a shared one is copied.
  absl::Status MakeWritable(tensorflow::OpKernelContext* context, size_t at, LaterReads reads);

 private:
  struct Written {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;  // null: a reference,
    int input;                                                // which is this input of the op
  };
  std::vector<Written> written_;
  std::deque<tensorflow::Tensor> references_;  // the values of references
  std::vector<tensorflow::mutex*> mutexes_;
};

}  // namespace group_embedding
