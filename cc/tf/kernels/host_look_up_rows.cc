#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "exchange/host/changed_rows.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/located_batch.h"
#include "tf/support/send_rows_op.h"
#include "tf/support/tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Inputs: tables, batch, sizes, keyed_tables, ..., sent, received. Its messages have rows of
// tables, which it reads before anything waits: once they are in messages and outputs, nothing
// holds the tables' locks, whenever the other ranks come.
class SendTableRowsOp : public SendRowsOp {
 public:
  SendTableRowsOp(OpKernelConstruction* context, const char* dtypes_name)
      : SendRowsOp(context), attrs_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("keyed", &keyed_));
    OP_REQUIRES_OK(context, to_.Read(context, dtypes_name));
    OP_REQUIRES(context, to_.size() == attrs_.dims.size() && !to_.has_indices,
                absl::InvalidArgumentError(std::string(dtypes_name) +
                                           ": expected one per table, and no " + "indices"));
  }

 protected:
  // Writes messages of the rows that `call` has found, and reads this rank's own.
  virtual absl::Status WriteRows(OpKernelContext* context, HostExchange* exchange, RowCall* call,
                                 Outgoing* outgoing) = 0;

  // The parts of one output of HostRowsAhead; null for this rank.
  static absl::Status ReadAhead(const Tensor& ahead, const RowParts& parts, int64_t rank,
                                std::vector<const char*>* of_ranks) {
    const int64_t words = WordsWithout(parts, rank);
    if (ahead.NumElements() != words) {
      return absl::InvalidArgumentError(
          "ahead: expected " + std::to_string(words) + " words of rows, as counts says, got " +
          std::to_string(ahead.NumElements()) + "; are they of this batch?");
    }
    const std::vector<char*> found = PartsWithout(parts, rank, ahead.data());
    of_ranks->assign(found.begin(), found.end());
    return absl::OkStatus();
  }

  RowTypes to_;

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
    return WriteRows(context, exchange, call, outgoing);
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

  const GroupAttrs attrs_;
  std::vector<int32_t> keyed_;
};

// Inputs: ..., ahead (none, or the outputs of HostRowsAhead), sent, received. Outputs: rows.
class HostLookUpRowsOp : public SendTableRowsOp {
 public:
  explicit HostLookUpRowsOp(OpKernelConstruction* context)
      : SendTableRowsOp(context, "out_dtypes") {
    int num_ahead;
    OP_REQUIRES_OK(context, context->GetAttr("num_ahead", &num_ahead));
    OP_REQUIRES(context, num_ahead == 0 || num_ahead == 2,
                absl::InvalidArgumentError("ahead: expected none or two"));
    has_ahead_ = num_ahead == 2;
  }

 private:
  absl::Status WriteRows(OpKernelContext* context, HostExchange* exchange, RowCall* call,
                         Outgoing* outgoing) override {
    const RowParts& received = call->own.received;
    if (has_ahead_) TF_RETURN_IF_ERROR(WriteChanged(context, exchange, *call, outgoing));
    TF_RETURN_IF_ERROR(AllocateSlices(context, to_, received, received.counts, &call->to));
    if (!has_ahead_) TF_RETURN_IF_ERROR(Pack(context, exchange, *call, outgoing));
    CopyOwnRows(call->own, received.counts, call->to.data(), ThreadsOf(context));
    return absl::OkStatus();
  }

  absl::Status WriteChanged(OpKernelContext* context, HostExchange* exchange, const RowCall& call,
                            Outgoing* outgoing) const {
    const RowParts& sent = call.own.sent;
    std::vector<const char*> ahead, received_ahead;
    TF_RETURN_IF_ERROR(
        ReadAhead(context->input(context->num_inputs() - 4), sent, call.own.rank, &ahead));
    TF_RETURN_IF_ERROR(
        ReadAhead(ReceivedAhead(context), call.own.received, call.own.rank, &received_ahead));
    const ParallelFor threads = ThreadsOf(context);
    const ChangedRows changed(sent, call.from.data(), ahead.data(), threads);
    std::vector<int64_t> bytes;
    for (int64_t n = 0; n < sent.num_ranks; ++n) bytes.push_back(changed.bytes(n));
    TF_RETURN_IF_ERROR(Prepare(exchange, bytes, outgoing));
    changed.Write(OfOthers(*outgoing, call.own).data(), threads);
    return absl::OkStatus();
  }

  absl::Status Receive(OpKernelContext* context, const Inbox& inbox, RowCall* call) const override {
    const RowParts& received = call->own.received;
    const std::vector<const char*> parts = PartsOf(inbox, received.num_ranks);
    if (!has_ahead_) {
      TF_RETURN_IF_ERROR(CheckBytes(inbox, received, call->own.rank));
      UnpackRows(received, parts.data(), received.counts, call->to.data(), ThreadsOf(context));
      return absl::OkStatus();
    }
    for (int n = 0; n < received.num_ranks; ++n) {
      if (parts[n] == nullptr || AreChangedRows(received, n, parts[n], inbox.bytes(n))) continue;
      return absl::InvalidArgumentError(
          inbox.NameOf(n) + " sent " + std::to_string(inbox.bytes(n)) +
          " bytes, which are not the changed rows of this batch; do all ranks run the same model?");
    }
    std::vector<const char*> ahead;
    TF_RETURN_IF_ERROR(ReadAhead(ReceivedAhead(context), received, call->own.rank, &ahead));
    UnpackChangedRows(received, parts.data(), ahead.data(), call->to.data(), ThreadsOf(context));
    return absl::OkStatus();
  }

  static const Tensor& ReceivedAhead(OpKernelContext* context) {
    return context->input(context->num_inputs() - 3);
  }

  bool has_ahead_;
};

// Outputs: copies of the sent and of the received rows.
class HostRowsAheadOp : public SendTableRowsOp {
 public:
  explicit HostRowsAheadOp(OpKernelConstruction* context) : SendTableRowsOp(context, "wire") {}

 private:
  absl::Status WriteRows(OpKernelContext* context, HostExchange* exchange, RowCall* call,
                         Outgoing* outgoing) override {
    const RowParts& sent = call->own.sent;
    std::vector<char*> copies;
    TF_RETURN_IF_ERROR(AllocateParts(context, 0, sent, call->own.rank, &copies));
    TF_RETURN_IF_ERROR(Pack(context, exchange, *call, outgoing));
    const std::vector<char*> messages = OfOthers(*outgoing, call->own);
    std::vector<int64_t> words(sent.num_ranks);
    PackedSplits(sent, words.data());
    for (int64_t n = 0; n < sent.num_ranks; ++n) {
      if (messages[n] != nullptr) std::memcpy(copies[n], messages[n], 4 * words[n]);
    }
    return absl::OkStatus();
  }

  absl::Status Receive(OpKernelContext* context, const Inbox& inbox, RowCall* call) const override {
    const RowParts& received = call->own.received;
    TF_RETURN_IF_ERROR(CheckBytes(inbox, received, call->own.rank));
    std::vector<char*> copies;
    TF_RETURN_IF_ERROR(AllocateParts(context, 1, received, call->own.rank, &copies));
    for (int n = 0; n < received.num_ranks; ++n) {
      if (copies[n] != nullptr) std::memcpy(copies[n], inbox.data(n), inbox.bytes(n));
    }
    return absl::OkStatus();
  }

  // Makes an output, with a part for each other rank.
  static absl::Status AllocateParts(OpKernelContext* context, int output, const RowParts& parts,
                                    int64_t rank, std::vector<char*>* of_ranks) {
    Tensor* packed;
    const TensorShape shape({WordsWithout(parts, rank)});
    TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &packed));
    *of_ranks = PartsWithout(parts, rank, packed->data());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>HostLookUpRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<HostLookUpRowsOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>HostRowsAhead").Device(tensorflow::DEVICE_CPU),
                        Guarded<HostRowsAheadOp>);

}  // namespace
}  // namespace group_embedding
