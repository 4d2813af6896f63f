// What ops that exchange rows in messages have in common.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange/host/pack_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/host_exchanges.h"
#include "tf/support/row_slices.h"

namespace group_embedding {

// What a call knows from its beginning to its end.
struct RowCall {
  std::vector<int32_t> dims;
  std::vector<RowSlices> from, to;
  OwnRows own;
};

inline absl::Status CheckBothCounts(const tensorflow::Tensor& sent,
                                    const tensorflow::Tensor& received, size_t num_tables,
                                    const HostExchange& exchange) {
  TF_RETURN_IF_ERROR(CheckCounts("sent", sent, num_tables));
  TF_RETURN_IF_ERROR(CheckCounts("received", received, num_tables));
  if (sent.dim_size(0) != exchange.num_ranks() || received.dim_size(0) != exchange.num_ranks()) {
    return absl::InvalidArgumentError("sent, received: expected a line for each of " +
                                      std::to_string(exchange.num_ranks()) + " ranks");
  }
  for (size_t t = 0; t < num_tables; ++t) {
    if (sent.matrix<int64_t>()(exchange.rank(), t) !=
        received.matrix<int64_t>()(exchange.rank(), t)) {
      return absl::InvalidArgumentError("expected as many rows received as sent of this rank");
    }
  }
  return absl::OkStatus();
}

// Where the rows of each rank are in its message; null for this rank.
inline std::vector<const char*> PartsOf(const Inbox& inbox, int64_t num_ranks) {
  std::vector<const char*> parts;
  for (int n = 0; n < num_ranks; ++n) parts.push_back(inbox.data(n));
  return parts;
}

// An op whose last inputs are `sent` and `received`: it writes messages, sends them, and reads
// those that it receives.
class SendRowsOp : public tensorflow::AsyncOpKernel {
 public:
  explicit SendRowsOp(tensorflow::OpKernelConstruction* context)
      : tensorflow::AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("exchange", &number_));
    OP_REQUIRES_OK(context, ReadDescription(context, &description_));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<HostExchange> exchange;
    OP_REQUIRES_OK_ASYNC(context, FindHostExchange(number_, &exchange), done);
    auto call = std::make_shared<RowCall>();
    Outgoing outgoing;
    OP_REQUIRES_OK_ASYNC(
        context, InCall(WriteMessages(context, exchange.get(), call.get(), &outgoing)), done);
    SendMessages(context, exchange.get(), std::move(outgoing), std::move(done),
                 [=](const Inbox& inbox) { return InCall(Receive(context, inbox, call.get())); });
  }

 protected:
  static const tensorflow::Tensor& Sent(tensorflow::OpKernelContext* context) {
    return context->input(context->num_inputs() - 2);
  }
  static const tensorflow::Tensor& Received(tensorflow::OpKernelContext* context) {
    return context->input(context->num_inputs() - 1);
  }

  // An error names the tables of the call.
  absl::Status InCall(const absl::Status& status) const {
    if (status.ok() || description_.text->empty()) return status;
    return absl::Status(status.code(),
                        std::string(status.message()) + ", in " + *description_.text);
  }

  virtual absl::Status WriteMessages(tensorflow::OpKernelContext* context, HostExchange* exchange,
                                     RowCall* call, Outgoing* outgoing) = 0;
  virtual absl::Status Receive(tensorflow::OpKernelContext* context, const Inbox& inbox,
                               RowCall* call) const = 0;

  // Packs the slices of `call` into messages.
  absl::Status Pack(tensorflow::OpKernelContext* context, HostExchange* exchange,
                    const RowCall& call, Outgoing* outgoing) const {
    const RowParts& sent = call.own.sent;
    std::vector<int64_t> bytes(sent.num_ranks);
    PackedSplits(sent, bytes.data());
    for (int64_t& words : bytes) words *= 4;
    TF_RETURN_IF_ERROR(Prepare(exchange, bytes, outgoing));
    const std::vector<char*> parts = OfOthers(*outgoing, call.own);
    PackRows(sent, call.from.data(), call.own.scale, parts.data(), ThreadsOf(context));
    return absl::OkStatus();
  }

  // Makes messages of so many bytes to each rank.
  absl::Status Prepare(HostExchange* exchange, const std::vector<int64_t>& bytes,
                       Outgoing* outgoing) const {
    const Status status = exchange->Prepare(name(), description_, bytes, outgoing);
    return status.ok() ? absl::OkStatus() : absl::ResourceExhaustedError(status.message());
  }

  // [num_ranks] the messages to the other ranks; null for this one.
  static std::vector<char*> OfOthers(const Outgoing& outgoing, const OwnRows& own) {
    std::vector<char*> messages(own.sent.num_ranks, nullptr);
    for (int n = 0; n < own.sent.num_ranks; ++n) {
      if (n != own.rank) messages[n] = outgoing.data(n);
    }
    return messages;
  }

  static absl::Status CheckBytes(const Inbox& inbox, const RowParts& received, int64_t rank) {
    std::vector<int64_t> splits(received.num_ranks);
    PackedSplits(received, splits.data());
    for (int n = 0; n < received.num_ranks; ++n) {
      if (n == rank || inbox.bytes(n) == 4 * splits[n]) continue;
      return absl::InvalidArgumentError(
          inbox.NameOf(n) + " sent " + std::to_string(inbox.bytes(n)) + " bytes, expected " +
          std::to_string(4 * splits[n]) + ", as counts says; do all ranks run the same model?");
    }
    return absl::OkStatus();
  }

  int64_t number_;
  CallDescription description_;
};

}  // namespace group_embedding
