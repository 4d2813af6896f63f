#include <string>

#include "exchange/host/pending_calls.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

// Input: any tensor, on any device, which is not read. Output: the same.
class MarkCallOp : public OpKernel {
 public:
  explicit MarkCallOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("begins", &begins_));
    OP_REQUIRES_OK(context, context->GetAttr("key", &key_));
    OP_REQUIRES_OK(context, context->GetAttr("description", &description_));
    OP_REQUIRES_OK(context, context->GetAttr("ends_with_step", &ends_with_step_));
  }

  void Compute(OpKernelContext* context) override {
    if (begins_) {
      Begin(context->cancellation_manager());
    } else {
      PendingCalls::OfProcess().End(key_);
    }
    context->set_output(0, context->input(0));
  }

  bool IsExpensive() override { return false; }

 private:
  // Where an op of the step fails, the one that ends the call does not run. TensorFlow cancels the
  // step then. An eager op is a step of its own, which ends at once.
  void Begin(tensorflow::CancellationManager* cancellation) const {
    const int64_t number = PendingCalls::OfProcess().Begin(key_, description_);
    if (cancellation == nullptr || !ends_with_step_) return;
    const auto token = cancellation->get_cancellation_token();
    cancellation->RegisterCallback(
        token, [key = key_, number] { PendingCalls::OfProcess().EndNumber(key, number); });
  }

  bool begins_, ends_with_step_;
  std::string key_, description_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>MarkCall").Device(tensorflow::DEVICE_CPU), MarkCallOp);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>MarkCall").Device(tensorflow::DEVICE_GPU), MarkCallOp);

}  // namespace
}  // namespace group_embedding
