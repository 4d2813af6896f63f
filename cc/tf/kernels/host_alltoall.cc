#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/guarded_op.h"
#include "tf/support/host_exchanges.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Inputs: tensor, splits. Outputs: received, received_splits.
class HostAlltoallOp : public HostRowsOp {
 public:
  explicit HostAlltoallOp(OpKernelConstruction* context) : HostRowsOp(context) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& tensor = context->input(0);
    std::shared_ptr<HostExchange> exchange;
    OP_REQUIRES_OK_ASYNC(context, FindHostExchange(number_, &exchange), done);
    std::vector<int64_t> splits;
    OP_REQUIRES_OK_ASYNC(context, ReadSplits(context, exchange->num_ranks(), &splits), done);
    const int64_t row_bytes = RowBytes(tensor);
    std::vector<int64_t> bytes;
    for (const int64_t rows : splits) bytes.push_back(kHeaderBytes + rows * row_bytes);
    Outgoing outgoing;
    const Status status = exchange->Prepare(name(), description_, bytes, &outgoing);
    OP_REQUIRES_ASYNC(context, status.ok(), absl::ResourceExhaustedError(status.message()), done);
    const char* from = static_cast<const char*>(tensor.data());
    const char* own = from;
    const int rank = exchange->rank();
    for (int n = 0; n < exchange->num_ranks(); from += splits[n++] * row_bytes) {
      if (n == rank) {
        own = from;
        continue;
      }
      std::memcpy(outgoing.data(n), &splits[n], sizeof(splits[n]));
      std::memcpy(outgoing.data(n) + kHeaderBytes, from, splits[n] * row_bytes);
    }
    const int64_t num_own = splits[rank];
    SendMessages(context, exchange.get(), std::move(outgoing), std::move(done),
                 [=](const Inbox& inbox) { return Receive(context, inbox, rank, own, num_own); });
  }

 private:
  static absl::Status ReadSplits(OpKernelContext* context, int num_ranks,
                                 std::vector<int64_t>* splits) {
    const Tensor& tensor = context->input(0);
    const Tensor& given = context->input(1);
    if (tensor.dims() == 0 || given.NumElements() != num_ranks) {
      return absl::InvalidArgumentError(
          "expected a tensor of at least one axis and a split for each of " +
          std::to_string(num_ranks) + " ranks, got shapes " + tensor.shape().DebugString() +
          " and " + given.shape().DebugString());
    }
    const auto values = given.flat<int32_t>();
    splits->assign(values.data(), values.data() + num_ranks);
    int64_t sum = 0;
    bool is_negative = false;
    for (const int64_t rows : *splits) sum += rows, is_negative |= rows < 0;
    if (!is_negative && sum == tensor.dim_size(0)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "splits: expected numbers of rows whose sum is the tensor's first axis, " +
        std::to_string(tensor.dim_size(0)) + ", got " + given.SummarizeValue(num_ranks));
  }

  // How many rows a message of another rank has: false where that cannot be.
  static bool ReadRows(const Inbox& inbox, int n, int64_t row_bytes, int64_t* rows) {
    const int64_t bytes = inbox.bytes(n) - kHeaderBytes;
    if (bytes < 0) return false;
    std::memcpy(rows, inbox.data(n), sizeof(*rows));
    if (*rows < 0 || *rows > std::numeric_limits<int32_t>::max()) return false;
    return *rows * row_bytes == bytes;
  }

  // How many rows came from each rank, in the output for them.
  static absl::Status ReadCounts(OpKernelContext* context, const Inbox& inbox, int rank,
                                 int64_t num_own, Tensor** counts) {
    const int num_ranks = static_cast<int>(context->input(1).NumElements());
    const int64_t row_bytes = RowBytes(context->input(0));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_ranks}), counts));
    for (int n = 0; n < num_ranks; ++n) {
      int64_t rows = num_own;
      if (n != rank && !ReadRows(inbox, n, row_bytes, &rows)) {
        return absl::InvalidArgumentError(
            inbox.NameOf(n) + " sent " + std::to_string(rows) + " rows in " +
            std::to_string(inbox.bytes(n) - kHeaderBytes) + " bytes, expected rows of " +
            std::to_string(row_bytes) + "; do all ranks run the same model?");
      }
      (*counts)->flat<int32_t>()(n) = static_cast<int32_t>(rows);
    }
    return absl::OkStatus();
  }

  static absl::Status Receive(OpKernelContext* context, const Inbox& inbox, int rank,
                              const char* own, int64_t num_own) {
    Tensor *counts, *received;
    TF_RETURN_IF_ERROR(ReadCounts(context, inbox, rank, num_own, &counts));
    const auto rows = counts->flat<int32_t>();
    TensorShape shape = context->input(0).shape();
    int64_t sum = 0;
    for (int64_t n = 0; n < rows.size(); ++n) sum += rows(n);
    TF_RETURN_IF_ERROR(shape.SetDimWithStatus(0, sum));
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &received));
    const int64_t row_bytes = RowBytes(context->input(0));
    char* to = static_cast<char*>(received->data());
    for (int n = 0; n < rows.size(); to += rows(n++) * row_bytes) {
      std::memcpy(to, n == rank ? own : inbox.data(n) + kHeaderBytes, rows(n) * row_bytes);
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>HostAlltoall").Device(tensorflow::DEVICE_CPU),
                        Guarded<HostAlltoallOp>);

}  // namespace
}  // namespace group_embedding
