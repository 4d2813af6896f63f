#include "tf/support/lookup_state.h"

#if GOOGLE_CUDA

#include "core/device_buffer.h"
#include "exchange/gpu/request_batch.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tf/support/device.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TypeIndex;  // named without its namespace by the macro below

// Eager autodiff calls it for every output that the loss does not depend on.
absl::Status ZerosLike(OpKernelContext*, const LookupStateVariant&, LookupStateVariant* zeros) {
  *zeros = LookupStateVariant();
  return absl::OkStatus();
}

REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                         tensorflow::DEVICE_GPU, LookupStateVariant, ZerosLike);

}  // namespace

LookupState::LookupState(OpKernelContext* context, const Group& group, const Tensor& batch,
                         std::shared_ptr<Communicator> communicator, const std::string& description,
                         DataType comm_type, std::vector<KeyedFeature> keyed)
    : comm_type(comm_type),
      batch_(batch),
      communicator_(std::move(communicator)),
      tensors_(context) {
  lookup_ = std::make_unique<ShardedLookup>(group, communicator_.get(), description, comm_type,
                                            tensors_.memory(), std::move(keyed));
}

const ExchangedCounts& LookupState::RequestCounts() {
  const cudaStream_t stream = StreamOf(tensors_.op());
  const Fault none;
  Tensor fault;
  Require(std::string(AllocateScratch(tensors_.op(), sizeof(Fault), &fault).message()));
  RequireCuda(cudaMemcpyAsync(fault.data(), &none, sizeof(Fault), cudaMemcpyHostToDevice, stream));
  return lookup_->RequestCounts(static_cast<Fault*>(fault.data()), stream);
}

absl::Status LookupState::MakeRequests(int64_t** ids) {
  const int64_t num_requests = lookup_->num_requests();
  const BatchLayout at = LayOutRequests(num_requests);
  TF_RETURN_IF_ERROR(
      tensors_.op()->allocate_temp(tensorflow::DT_FLOAT, TensorShape({at.size}), &requests));
  float* buffer = requests.flat<float>().data();
  *ids = reinterpret_cast<int64_t*>(buffer + at.ids);
  return ToStatus(
      WriteRequestBatchCuda(num_requests, gradient_scale, buffer, StreamOf(tensors_.op())),
      "WriteRequestBatch");
}

absl::Status ToStatus(const ExchangedCounts& counts, const GroupAttrs& attrs,
                      const std::vector<Table>& tables, int rank, const BatchExtents& batch) {
  if (!counts.disagreement.ok()) {
    return absl::InvalidArgumentError(counts.disagreement.message());
  }
  if (counts.fault_rank < 0) return absl::OkStatus();
  const absl::Status status =
      attrs.ToStatus(counts.fault, tables, counts.fault_rank == rank ? &batch : nullptr);
  return absl::InvalidArgumentError("rank " + std::to_string(counts.fault_rank) + ": " +
                                    std::string(status.message()));
}

void AbortAlone(const absl::Status& status, Communicator* communicator) {
  communicator->Abort("this rank had an error that others had not: " +
                      std::string(status.message()));
}

Group MakeGroup(const GroupAttrs& attrs, const std::vector<Table>& tables,
                const std::vector<Feature>& features, const Batch& batch) {
  Group group;
  group.tables = tables.data();
  group.num_tables = static_cast<int64_t>(tables.size());
  group.features = features.data();
  group.num_features = static_cast<int64_t>(features.size());
  group.batch = batch;
  group.dtype = attrs.core_dtype;
  group.invalid_ids = attrs.invalid_ids;
  return group;
}

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
