#include "tf/support/batch_input.h"

#include "grouping/group_ids.h"
#include "tf/support/device.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

absl::Status DescribeIn(const Fault& fault, const BatchExtents& extents,
                        const std::vector<std::string>* names) {
  if (fault.kind == FaultKind::kNone) return absl::OkStatus();
  const std::string name =
      names == nullptr ? std::to_string(fault.feature) : (*names)[fault.feature];
  return absl::InvalidArgumentError(Describe(fault, name, "", extents.num_ids(fault.feature)));
}

}  // namespace

absl::Status ReadBatch(OpKernelContext* context, const Tensor& batch, const Tensor& sizes,
                       int64_t num_features, bool weighted, BatchCheck check,
                       const std::vector<std::string>* feature_names, BatchInput* input) {
  if (num_features == 0 || sizes.dims() != 2 || sizes.dim_size(0) != num_features ||
      sizes.dim_size(1) != 2) {
    return absl::InvalidArgumentError("sizes: expected shape [" + std::to_string(num_features) +
                                      ", 2] of one feature or more, got " +
                                      sizes.shape().DebugString());
  }
  const Status status = AddSizes(sizes.flat<int64_t>().data(), num_features, weighted,
                                 batch.NumElements(), &input->extents);
  if (!status.ok()) return absl::InvalidArgumentError(status.message());
  input->view = ViewBatch(batch.flat<float>().data(), input->extents.num_samples(),
                          input->extents.num_ids(), weighted);
  const bool on_gpu =
      context->op_device_context() != nullptr && check != BatchCheck::kRowSplitsOnHost;
  if (check == BatchCheck::kSizes || on_gpu) return absl::OkStatus();
  const Fault fault = check == BatchCheck::kFeatureSplits
                          ? CheckFeatureSplits(input->view, input->extents)
                          : CheckRowSplits(input->view, input->extents, ThreadsOf(context));
  return DescribeIn(fault, input->extents, feature_names);
}

}  // namespace group_embedding
