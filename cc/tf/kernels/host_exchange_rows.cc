#include <memory>
#include <string>
#include <vector>

#include "exchange/pack_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/kernels/device.h"
#include "tf/kernels/host_exchanges.h"
#include "tf/kernels/row_slices.h"

namespace group_embedding {
namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// What a call knows from its beginning to its end.
struct RowCall {
  std::vector<int32_t> dims;
  std::vector<RowSlices> slices;
  OwnRows own;
};

// Inputs: rows, indices, sent, received. Outputs: rows, indices.
class HostExchangeRowsOp : public AsyncOpKernel {
 public:
  explicit HostExchangeRowsOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, from_.Read(context, "dtypes"));
    OP_REQUIRES_OK(context, to_.Read(context, "out_dtypes"));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    OP_REQUIRES_OK(context, context->GetAttr("exchange", &number_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<HostExchange> exchange;
    OP_REQUIRES_OK_ASYNC(context, FindHostExchange(number_, &exchange), done);
    auto call = std::make_shared<RowCall>();
    OP_REQUIRES_OK_ASYNC(context, Read(context, *exchange, call.get()), done);
    const RowParts& sent = call->own.sent;
    std::vector<int64_t> bytes(sent.num_ranks);
    PackedSplits(sent, bytes.data());
    for (int64_t& words : bytes) words *= 4;
    Outgoing outgoing;
    const std::string error = exchange->Prepare(name(), bytes, &outgoing);
    OP_REQUIRES_ASYNC(context, error.empty(), absl::ResourceExhaustedError(error), done);
    std::vector<char*> parts(sent.num_ranks, nullptr);
    for (int n = 0; n < sent.num_ranks; ++n) {
      if (n != exchange->rank()) parts[n] = outgoing.data(n);
    }
    PackRows(sent, call->slices.data(), scale_, parts.data(), ThreadsOf(context));
    SendMail(context, exchange.get(), outgoing, std::move(done),
             [=](const Mail& mail) { return Receive(context, mail, *call); });
  }

 private:
  absl::Status Read(OpKernelContext* context, const HostExchange& exchange, RowCall* call) const {
    const Tensor& sent = context->input(context->num_inputs() - 2);
    const Tensor& received = context->input(context->num_inputs() - 1);
    TF_RETURN_IF_ERROR(CheckCounts("sent", sent, from_.size()));
    TF_RETURN_IF_ERROR(CheckCounts("received", received, from_.size()));
    if (sent.dim_size(0) != exchange.num_ranks() || received.dim_size(0) != exchange.num_ranks()) {
      return absl::InvalidArgumentError("sent, received: expected a line for each of " +
                                        std::to_string(exchange.num_ranks()) + " ranks");
    }
    for (size_t t = 0; t < from_.size(); ++t) {
      if (sent.matrix<int64_t>()(exchange.rank(), t) !=
          received.matrix<int64_t>()(exchange.rank(), t)) {
        return absl::InvalidArgumentError("expected as many rows received as sent of this rank");
      }
    }
    TF_RETURN_IF_ERROR(ReadSlices(context, from_, sent, &call->dims, &call->slices));
    call->own = {exchange.rank(), MakeParts(sent, call->dims, from_.wire), call->slices.data(),
                 scale_, MakeParts(received, call->dims, from_.wire)};
    return absl::OkStatus();
  }

  absl::Status Receive(OpKernelContext* context, const Mail& mail, const RowCall& call) const {
    const RowParts& received = call.own.received;
    const int64_t rank = call.own.rank;
    std::vector<const char*> parts;
    for (int n = 0; n < received.num_ranks; ++n) parts.push_back(mail.data(n));
    TF_RETURN_IF_ERROR(CheckBytes(mail, received, rank));
    std::vector<int64_t> present(received.num_ranks * received.num_tables);
    CountPresentRows(received, parts.data(), present.data());
    CountOwnRows(call.own, present.data() + rank * received.num_tables);
    std::vector<RowSlices> slices;
    TF_RETURN_IF_ERROR(AllocateSlices(context, to_, received, present.data(), &slices));
    const ParallelFor threads = ThreadsOf(context);
    CopyOwnRows(call.own, present.data(), slices.data(), threads);
    UnpackRows(received, parts.data(), present.data(), slices.data(), threads);
    return absl::OkStatus();
  }

  static absl::Status CheckBytes(const Mail& mail, const RowParts& received, int64_t rank) {
    std::vector<int64_t> splits(received.num_ranks);
    PackedSplits(received, splits.data());
    for (int n = 0; n < received.num_ranks; ++n) {
      if (n == rank || mail.bytes(n) == 4 * splits[n]) continue;
      return absl::InvalidArgumentError("rank " + std::to_string(n) + " sent " +
                                        std::to_string(mail.bytes(n)) + " bytes, expected " +
                                        std::to_string(4 * splits[n]) +
                                        ", as counts says; do all ranks run the same model?");
    }
    return absl::OkStatus();
  }

  RowTypes from_, to_;
  float scale_;
  int64_t number_;
};

REGISTER_KERNEL_BUILDER(Name("HostExchangeRows").Device(tensorflow::DEVICE_CPU),
                        HostExchangeRowsOp);

}  // namespace
}  // namespace group_embedding
