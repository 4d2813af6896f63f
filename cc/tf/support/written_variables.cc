#include "tf/support/written_variables.h"

#include <cstring>
#include <utility>

#include "tf/support/device.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// A copy in memory of its own.
absl::Status Clone(OpKernelContext* context, const Tensor& from, Tensor* to) {
  tensorflow::AllocatorAttributes attributes;
  attributes.set_gpu_compatible(true);
  attributes.set_nic_compatible(true);
  TF_RETURN_IF_ERROR(context->allocate_temp(from.dtype(), from.shape(), to, attributes));
#if GOOGLE_CUDA
  if (context->op_device_context() != nullptr) {
    return ToStatus(cudaMemcpyAsync(to->data(), from.data(), from.TotalBytes(),
                                    cudaMemcpyDeviceToDevice, StreamOf(context)),
                    "copying a variable that is also read");
  }
#endif
  std::memcpy(to->data(), from.data(), from.TotalBytes());
  return absl::OkStatus();
}

}  // namespace

absl::Status WrittenVariables::Add(OpKernelContext* context, const HandleList& list, int i) {
  Written written = {nullptr, list.input(i)};
  if (list.is_handle(i)) {
    TF_RETURN_IF_ERROR(list.Find(i, &written.variable));
    mutexes_.push_back(written.variable->mu());
  } else {
    mutexes_.push_back(context->input_ref_mutex(written.input));
  }
  written_.push_back(std::move(written));
  return absl::OkStatus();
}

const Tensor& WrittenVariables::Value(OpKernelContext* context, size_t at) {
  const Written& written = written_[at];
  if (written.variable != nullptr) return *written.variable->tensor();
  references_.push_back(context->mutable_input(written.input, /*lock_held=*/true));
  return references_.back();
}

void WrittenVariables::Touch() const {
  for (const Written& written : written_) {
    if (written.variable != nullptr) written.variable->tensor()->IsInitialized();
  }
}

absl::Status WrittenVariables::MakeWritable(OpKernelContext* context, size_t at, LaterReads reads) {
  tensorflow::Var* variable = written_[at].variable.get();
  if (variable == nullptr || variable->copy_on_read_mode.load()) return absl::OkStatus();
  if (!variable->tensor()->RefCountIsOne()) {
    Tensor own;
    TF_RETURN_IF_ERROR(Clone(context, *variable->tensor(), &own));
    *variable->tensor() = own;
  }
  if (reads == LaterReads::kCopy) variable->copy_on_read_mode.store(true);
  return absl::OkStatus();
}

}  // namespace group_embedding
