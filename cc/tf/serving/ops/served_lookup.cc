// The lookup of a served model on the CPU, and the batch that it is given.
#include <memory>
#include <vector>

#include "fused/stored_lookup.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/serving/ops/served_lookup_op.h"
#include "tf/support/device.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;

class ServedLookupCpuOp : public ServedLookupOp {
  using ServedLookupOp::ServedLookupOp;

  absl::Status Run(OpKernelContext* context, const std::vector<ServedSource>& /*sources*/,
                   const Group& group, const std::vector<RowFormat>& formats,
                   const std::shared_ptr<Readers>& /*readers*/, LocatedRows* /*located*/,
                   Fault* fault) override {
    *fault = StoredLookupCpu(group, formats.data(), RequestThreadsOf(context));
    return absl::OkStatus();
  }
};

class ServedBatchOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override { context->set_output(0, context->input(0)); }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedBatch").Device(tensorflow::DEVICE_CPU),
                        ServedBatchOp);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedLookup").Device(tensorflow::DEVICE_CPU),
                        Guarded<ServedLookupCpuOp>);

}  // namespace
}  // namespace group_embedding
