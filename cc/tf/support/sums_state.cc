#include "tf/support/sums_state.h"

#if GOOGLE_CUDA

#include "core/device_buffer.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tf/support/device.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TypeIndex;  // named without its namespace by the macro below

// Eager autodiff calls it for every output that the loss does not depend on.
absl::Status ZerosLike(OpKernelContext*, const SumsStateVariant&, SumsStateVariant* zeros) {
  *zeros = SumsStateVariant();
  return absl::OkStatus();
}

REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                         tensorflow::DEVICE_GPU, SumsStateVariant, ZerosLike);

}  // namespace

SumsState::SumsState(OpKernelContext* context, const Group& group, std::vector<TableOwner> owners,
                     const Tensor& batch, std::shared_ptr<Communicator> communicator,
                     const std::string& description, DataType comm_type)
    : batch_(batch),
      communicator_(std::move(communicator)),
      owners_(std::move(owners)),
      type_(group.dtype),
      tensors_(context),
      lookup_(group, owners_, communicator_.get(), description, comm_type, tensors_.memory()) {
  for (int64_t t = 0; t < group.num_tables; ++t) local_dims.push_back(group.tables[t].dim);
}

const ExchangedCounts& SumsState::RequestCounts() {
  OpKernelContext* op = tensors_.op();
  const Fault none;
  Tensor fault;
  Require(std::string(AllocateScratch(op, sizeof(Fault), &fault).message()));
  RequireCuda(
      cudaMemcpyAsync(fault.data(), &none, sizeof(Fault), cudaMemcpyHostToDevice, StreamOf(op)));
  return lookup_.RequestCounts(static_cast<Fault*>(fault.data()), StreamOf(op));
}

void SumsState::PointToOwnColumns(std::vector<Feature>* features) const {
  for (Feature& feature : *features) {
    if (owners_[feature.table].rank != TableOwner::kColumns || feature.output == nullptr) continue;
    const int64_t columns = int64_t{communicator_->rank()} * local_dims[feature.table];
    feature.output = static_cast<char*>(feature.output) + columns * SizeOf(type_);
  }
}

absl::Status ReadSumsState(OpKernelContext* context, std::shared_ptr<SumsState>* held) {
  const Tensor* state;
  TF_RETURN_IF_ERROR(context->input("state", &state));
  const auto* content =
      state->dims() == 0 ? state->scalar<tensorflow::Variant>()().get<SumsStateVariant>() : nullptr;
  if (content == nullptr || content->held == nullptr) {
    return absl::InvalidArgumentError("state: expected that of a lookup by owners' sums");
  }
  *held = content->held;
  return absl::OkStatus();
}

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
