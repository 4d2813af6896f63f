#include <memory>
#include <string>
#include <vector>

#include "exchange/host/pack_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/host_exchanges.h"
#include "tf/support/located_batch.h"
#include "tf/support/row_slices.h"
#include "tf/support/tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// What a call knows from its beginning to its end.
struct RowCall {
  std::vector<int32_t> dims;
  std::vector<RowSlices> from, to;
  OwnRows own;
};

absl::Status CheckBothCounts(const Tensor& sent, const Tensor& received, size_t num_tables,
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
std::vector<const char*> PartsOf(const Inbox& inbox, int64_t num_ranks) {
  std::vector<const char*> parts;
  for (int n = 0; n < num_ranks; ++n) parts.push_back(inbox.data(n));
  return parts;
}

// What both ops do: their last inputs are `sent` and `received`.
class SendRowsOp : public AsyncOpKernel {
 public:
  explicit SendRowsOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("exchange", &number_));
    OP_REQUIRES_OK(context, ReadDescription(context, &description_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
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
  static const Tensor& Sent(OpKernelContext* context) {
    return context->input(context->num_inputs() - 2);
  }
  static const Tensor& Received(OpKernelContext* context) {
    return context->input(context->num_inputs() - 1);
  }

  // An error names the tables of the call.
  absl::Status InCall(const absl::Status& status) const {
    if (status.ok() || description_.text->empty()) return status;
    return absl::Status(status.code(),
                        std::string(status.message()) + ", in " + *description_.text);
  }

  virtual absl::Status WriteMessages(OpKernelContext* context, HostExchange* exchange,
                                     RowCall* call, Outgoing* outgoing) = 0;
  virtual absl::Status Receive(OpKernelContext* context, const Inbox& inbox,
                               RowCall* call) const = 0;

  // Packs the slices of `call` into messages.
  absl::Status Pack(OpKernelContext* context, HostExchange* exchange, const RowCall& call,
                    Outgoing* outgoing) const {
    const RowParts& sent = call.own.sent;
    std::vector<int64_t> bytes(sent.num_ranks);
    PackedSplits(sent, bytes.data());
    for (int64_t& words : bytes) words *= 4;
    const Status status = exchange->Prepare(name(), description_, bytes, outgoing);
    if (!status.ok()) return absl::ResourceExhaustedError(status.message());
    std::vector<char*> parts(sent.num_ranks, nullptr);
    for (int n = 0; n < sent.num_ranks; ++n) {
      if (n != exchange->rank()) parts[n] = outgoing->data(n);
    }
    PackRows(sent, call.from.data(), call.own.scale, parts.data(), ThreadsOf(context));
    return absl::OkStatus();
  }

  static absl::Status CheckBytes(const Inbox& inbox, const RowParts& received, int64_t rank) {
    std::vector<int64_t> splits(received.num_ranks);
    PackedSplits(received, splits.data());
    for (int n = 0; n < received.num_ranks; ++n) {
      if (n == rank || inbox.bytes(n) == 4 * splits[n]) continue;
      return absl::InvalidArgumentError("rank " + std::to_string(n) + " sent " +
                                        std::to_string(inbox.bytes(n)) + " bytes, expected " +
                                        std::to_string(4 * splits[n]) +
                                        ", as counts says; do all ranks run the same model?");
    }
    return absl::OkStatus();
  }

  int64_t number_;
  CallDescription description_;
};

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

// Inputs: tables, batch, sizes, keyed_tables, sent, received. Outputs: rows.
//
// Rows go from the tables straight into messages and outputs; once they are there, nothing holds
// the tables' locks, whenever the other ranks come.
class HostLookUpRowsOp : public SendRowsOp {
 public:
  explicit HostLookUpRowsOp(OpKernelConstruction* context) : SendRowsOp(context), attrs_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("keyed", &keyed_));
    OP_REQUIRES_OK(context, to_.Read(context, "out_dtypes"));
    OP_REQUIRES(context, to_.size() == attrs_.dims.size() && !to_.has_indices,
                absl::InvalidArgumentError("out_dtypes: expected one per table, and no indices"));
  }

 private:
  absl::Status WriteMessages(OpKernelContext* context, HostExchange* exchange, RowCall* call,
                             Outgoing* outgoing) override {
    const Tensor &sent = Sent(context), &received = Received(context);
    TF_RETURN_IF_ERROR(CheckBothCounts(sent, received, to_.size(), *exchange));
    call->dims = attrs_.dims;
    Tables tables;
    TF_RETURN_IF_ERROR(tables.Read(context, attrs_, keyed_));
    call->own = {exchange->rank(), MakeParts(sent, call->dims, to_.wire), nullptr, 1.0f,
                 MakeParts(received, call->dims, to_.wire)};
    TF_RETURN_IF_ERROR(FindRows(context, tables.get(), call->own.sent, &call->from));
    call->own.from = call->from.data();
    const int64_t* present = call->own.received.counts;
    TF_RETURN_IF_ERROR(AllocateSlices(context, to_, call->own.received, present, &call->to));
    TF_RETURN_IF_ERROR(Pack(context, exchange, *call, outgoing));
    CopyOwnRows(call->own, present, call->to.data(), ThreadsOf(context));
    return absl::OkStatus();
  }

  // The rows that the batch's ids name, one id of each sample.
  absl::Status FindRows(OpKernelContext* context, const std::vector<Table>& tables,
                        const RowParts& sent, std::vector<RowSlices>* rows) const {
    const int num_tables = static_cast<int>(tables.size());
    std::vector<Feature> features;
    BatchInput batch;
    TF_RETURN_IF_ERROR(attrs_.MakeFeatures(context, BatchCheck::kSizes, &batch, &features));
    const BatchExtents& extents = batch.extents;
    if (extents.num_features() != num_tables) {
      return absl::InvalidArgumentError("table_of_feature: expected a feature for each table");
    }
    batch.view = AsRead(batch.view);
    for (int t = 0; t < num_tables; ++t) {
      int64_t count = 0;
      for (int64_t n = 0; n < sent.num_ranks; ++n) count += sent.counts[n * num_tables + t];
      if (features[t].table != t || extents.num_samples(t) != count ||
          extents.num_ids(t) != count) {
        return absl::InvalidArgumentError("batch: expected for each table the ids that sent says");
      }
      const int64_t* ids = batch.view.ids + extents.first_ids[t];
      TF_RETURN_IF_ERROR(CheckIds(tables, t, ids, extents));
      rows->push_back({const_cast<void*>(tables[t].rows), attrs_.core_dtype, /*all=*/true,
                       /*indices=*/nullptr, count, ids});
    }
    return absl::OkStatus();
  }

  absl::Status CheckIds(const std::vector<Table>& tables, int32_t table, const int64_t* ids,
                        const BatchExtents& batch) const {
    const uint64_t num_rows = static_cast<uint64_t>(tables[table].num_rows);
    for (int64_t i = 0; i < batch.num_ids(table); ++i) {
      if (static_cast<uint64_t>(ids[i]) < num_rows) continue;
      return attrs_.ToStatus({FaultKind::kIdOutOfRange, table, i, ids[i]}, tables, &batch);
    }
    return absl::OkStatus();
  }

  absl::Status Receive(OpKernelContext* context, const Inbox& inbox, RowCall* call) const override {
    const RowParts& received = call->own.received;
    const std::vector<const char*> parts = PartsOf(inbox, received.num_ranks);
    TF_RETURN_IF_ERROR(CheckBytes(inbox, received, call->own.rank));
    UnpackRows(received, parts.data(), received.counts, call->to.data(), ThreadsOf(context));
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;
  std::vector<int32_t> keyed_;
  RowTypes to_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>HostExchangeRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<HostExchangeRowsOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>HostLookUpRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<HostLookUpRowsOp>);

}  // namespace
}  // namespace group_embedding
