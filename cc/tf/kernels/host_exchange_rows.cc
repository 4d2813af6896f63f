#include <vector>

#include "tf/support/guarded_op.h"
#include "tf/support/send_rows_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Inputs: rows, indices, sent, received. Outputs: rows, indices.
class HostExchangeRowsOp : public SendRowsOp {
 public:
  explicit HostExchangeRowsOp(OpKernelConstruction* context) : SendRowsOp(context) {
    OP_REQUIRES_OK(context, from_.Read(context, "dtypes"));
    OP_REQUIRES_OK(context, to_.Read(context, "out_dtypes"));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    OP_REQUIRES(context, to_.size() == from_.size(),
                absl::InvalidArgumentError("out_dtypes: expected one per table"));
  }

 private:
  absl::Status WriteMessages(OpKernelContext* context, HostExchange* exchange, RowCall* call,
                             Outgoing* outgoing) override {
    const Tensor &sent = Sent(context), &received = Received(context);
    TF_RETURN_IF_ERROR(CheckBothCounts(sent, received, from_.size(), *exchange));
    TF_RETURN_IF_ERROR(ReadSlices(context, from_, sent, &call->dims, &call->from));
    call->own = {exchange->rank(), MakeParts(sent, call->dims, from_.wire), call->from.data(),
                 scale_, MakeParts(received, call->dims, from_.wire)};
    return Pack(context, exchange, *call, outgoing);
  }

  absl::Status Receive(OpKernelContext* context, const Inbox& inbox, RowCall* call) const override {
    const RowParts& received = call->own.received;
    const int64_t rank = call->own.rank;
    const std::vector<const char*> parts = PartsOf(inbox, received.num_ranks);
    TF_RETURN_IF_ERROR(CheckBytes(inbox, received, rank));
    std::vector<int64_t> present(received.num_ranks * received.num_tables);
    CountPresentRows(received, parts.data(), present.data());
    CountOwnRows(call->own, present.data() + rank * received.num_tables);
    TF_RETURN_IF_ERROR(AllocateSlices(context, to_, received, present.data(), &call->to));
    const ParallelFor threads = ThreadsOf(context);
    CopyOwnRows(call->own, present.data(), call->to.data(), threads);
    UnpackRows(received, parts.data(), present.data(), call->to.data(), threads);
    return absl::OkStatus();
  }

  RowTypes from_, to_;
  float scale_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>HostExchangeRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<HostExchangeRowsOp>);

}  // namespace
}  // namespace group_embedding
