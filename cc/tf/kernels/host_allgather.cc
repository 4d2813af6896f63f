#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/guarded_op.h"
#include "tf/support/host_exchanges.h"

namespace group_embedding {
namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// A message has the number of all rows of the sender, and a piece of them. Pieces limit the memory
// of messages; what ranks gather in each step fits one.
constexpr int64_t kPieceBytes = int64_t{64} << 20;

int64_t PieceBytes(int64_t all_bytes, int64_t piece) {
  return std::clamp<int64_t>(all_bytes - piece * kPieceBytes, 0, kPieceBytes);
}

// One call from its beginning to its end.
struct GatherCall {
  OpKernelContext* context;
  AsyncOpKernel::DoneCallback done;
  std::shared_ptr<HostExchange> exchange;
  int64_t row_bytes;
  int64_t piece = 0;               // the one under way
  int64_t num_pieces = 1;          // of the rank that has most; known after the first
  std::vector<int64_t> first_row;  // [num_ranks + 1] of each rank in the output
  char* output = nullptr;

  const Tensor& tensor() const { return context->input(0); }
  int64_t AllBytes(int rank) const { return (first_row[rank + 1] - first_row[rank]) * row_bytes; }
};

// Inputs: tensor. Outputs: gathered.
class HostAllgatherOp : public HostRowsOp {
 public:
  explicit HostAllgatherOp(OpKernelConstruction* context) : HostRowsOp(context) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& tensor = context->input(0);
    std::shared_ptr<HostExchange> exchange;
    OP_REQUIRES_OK_ASYNC(context, FindHostExchange(number_, &exchange), done);
    OP_REQUIRES_ASYNC(
        context, tensor.dims() > 0,
        absl::InvalidArgumentError("tensor: expected at least one axis, got a scalar"), done);
    auto call = std::make_shared<GatherCall>(
        GatherCall{context, std::move(done), std::move(exchange), RowBytes(tensor)});
    SendPiece(call);
  }

 private:
  void SendPiece(const std::shared_ptr<GatherCall>& call) const {
    const Tensor& tensor = call->tensor();
    const int64_t num_rows = tensor.dim_size(0);
    const int64_t bytes = PieceBytes(num_rows * call->row_bytes, call->piece);
    Outgoing outgoing;
    const std::vector<int64_t> of_ranks(call->exchange->num_ranks(), kHeaderBytes + bytes);
    const Status prepared = call->exchange->Prepare(name(), description_, of_ranks, &outgoing);
    if (!prepared.ok()) return End(*call, absl::ResourceExhaustedError(prepared.message()));
    const char* from = static_cast<const char*>(tensor.data()) + call->piece * kPieceBytes;
    for (int n = 0; n < call->exchange->num_ranks(); ++n) {
      if (n == call->exchange->rank()) continue;
      std::memcpy(outgoing.data(n), &num_rows, sizeof(num_rows));
      if (bytes > 0) std::memcpy(outgoing.data(n) + kHeaderBytes, from, bytes);
    }
    auto received = [=](const Status& status, std::shared_ptr<const Inbox> inbox) {
      if (!status.ok()) return End(*call, absl::InternalError(status.message()));
      const absl::Status read = CatchErrors([&] { return Receive(*inbox, call.get()); });
      inbox = nullptr;
      if (!read.ok() || ++call->piece == call->num_pieces) return End(*call, read);
      SendPiece(call);
    };
    call->exchange->Send(std::move(outgoing), std::move(received));
  }

  static void End(const GatherCall& call, const absl::Status& status) {
    call.context->SetStatus(status);
    call.done();
  }

  static absl::Status Receive(const Inbox& inbox, GatherCall* call) {
    if (call->piece == 0) TF_RETURN_IF_ERROR(Begin(inbox, call));
    for (int n = 0; n < call->exchange->num_ranks(); ++n) {
      if (n == call->exchange->rank()) continue;
      const int64_t bytes = PieceBytes(call->AllBytes(n), call->piece);
      if (inbox.bytes(n) != kHeaderBytes + bytes) {
        return absl::InvalidArgumentError(
            inbox.NameOf(n) + " sent " + std::to_string(inbox.bytes(n) - kHeaderBytes) +
            " bytes, expected " + std::to_string(bytes) + "; do all ranks run the same model?");
      }
      if (bytes == 0) continue;
      char* to = call->output + call->first_row[n] * call->row_bytes + call->piece * kPieceBytes;
      std::memcpy(to, inbox.data(n) + kHeaderBytes, bytes);
    }
    return absl::OkStatus();
  }

  // Makes the output, and copies what this rank has.
  static absl::Status Begin(const Inbox& inbox, GatherCall* call) {
    constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max() / 2;
    const Tensor& tensor = call->tensor();
    const int rank = call->exchange->rank();
    call->first_row.assign(1, 0);
    for (int n = 0; n < call->exchange->num_ranks(); ++n) {
      int64_t num_rows = tensor.dim_size(0);
      if (n != rank) {
        if (inbox.bytes(n) < kHeaderBytes)
          num_rows = -1;
        else
          std::memcpy(&num_rows, inbox.data(n), sizeof(num_rows));
      }
      const int64_t most = kMaxBytes / std::max<int64_t>(1, call->row_bytes);
      if (num_rows < 0 || num_rows > most - call->first_row.back()) {
        return absl::InvalidArgumentError(inbox.NameOf(n) +
                                          " sent what is no message of this call");
      }
      call->first_row.push_back(call->first_row.back() + num_rows);
      const int64_t pieces = (num_rows * call->row_bytes + kPieceBytes - 1) / kPieceBytes;
      call->num_pieces = std::max(call->num_pieces, pieces);
    }
    TensorShape shape = tensor.shape();
    TF_RETURN_IF_ERROR(shape.SetDimWithStatus(0, call->first_row.back()));
    Tensor* output;
    TF_RETURN_IF_ERROR(call->context->allocate_output(0, shape, &output));
    call->output = static_cast<char*>(output->data());
    const int64_t own_bytes = call->AllBytes(rank);
    char* to = call->output + call->first_row[rank] * call->row_bytes;
    if (own_bytes > 0) std::memcpy(to, tensor.data(), own_bytes);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>HostAllgather").Device(tensorflow::DEVICE_CPU),
                        Guarded<HostAllgatherOp>);

}  // namespace
}  // namespace group_embedding
