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
    std::string scope;
    OP_REQUIRES_OK(context, context->GetAttr("scope", &scope));
    caller_ = CallerOf(name(), scope);
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
  // Where TensorFlow puts a function in the place of a call of it, the names of its ops begin with
  // the name of the caller. Collectives are matched by such names.
  // name: <caller>/<scope>/<op>, or without the first or the first two of them.
  static std::string CallerOf(const std::string& name, const std::string& scope) {
    const size_t op = name.rfind('/');
    if (op == std::string::npos) return "";
    const std::string above = name.substr(0, op);
    if (scope.empty()) return above;
    const std::string end = "/" + scope;
    const bool has_caller =
        above.size() > end.size() && above.compare(above.size() - end.size(), end.size(), end) == 0;
    return has_caller ? above.substr(0, above.size() - end.size()) : "";
  }

  // Where an op of the step fails, the one that ends the call does not run. TensorFlow cancels the
  // step then. An eager op is a step of its own, which ends at once.
  void Begin(tensorflow::CancellationManager* cancellation) const {
    const int64_t number = PendingCalls::OfProcess().Begin(key_, description_, caller_);
    if (cancellation == nullptr || !ends_with_step_) return;
    const auto token = cancellation->get_cancellation_token();
    cancellation->RegisterCallback(
        token, [key = key_, number] { PendingCalls::OfProcess().EndNumber(key, number); });
  }

  bool begins_, ends_with_step_;
  std::string key_, description_, caller_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>MarkCall").Device(tensorflow::DEVICE_CPU), MarkCallOp);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>MarkCall").Device(tensorflow::DEVICE_GPU), MarkCallOp);

}  // namespace
}  // namespace group_embedding
