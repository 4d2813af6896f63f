// NamedTensors: the memory by name of a lookup over GPUs, in tensors of the ops that run it.
#pragma once

#if GOOGLE_CUDA

#include <map>
#include <string>

#include "exchange/gpu/named_memory.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {

class NamedTensors {
 public:
  explicit NamedTensors(tensorflow::OpKernelContext* context) : context_(context) {}
  NamedTensors(const NamedTensors&) = delete;
  NamedTensors& operator=(const NamedTensors&) = delete;

  // Sets the op that allocates memory from now on.
  void EnterOp(tensorflow::OpKernelContext* context) { context_ = context; }
  tensorflow::OpKernelContext* op() const { return context_; }

  // Borrows from this. It throws where there is no memory.
  NamedMemory memory();

  // Whether `data` lies in the device memory named `piece`.
  bool Has(const std::string& piece, const char* data) const;
  // A tensor that shares the memory at `data`, which lies in the device memory named `piece`.
  absl::Status View(const std::string& piece, const char* data, tensorflow::DataType dtype,
                    const tensorflow::TensorShape& shape, tensorflow::Tensor* view) const;

  // Drops `piece`: its views keep it alive, and the next use allocates new memory.
  void GiveAway(const std::string& piece) { on_device_.erase(piece); }
  // Drops all device memory but `kept`: work that uses it has been enqueued on the op's stream.
  void GiveAwayAllBut(const std::string& kept);

 private:
  void* Get(tensorflow::Tensor* piece, int64_t bytes, tensorflow::AllocatorAttributes where);

  tensorflow::OpKernelContext* context_;
  std::map<std::string, tensorflow::Tensor> on_device_, on_host_;
};

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
