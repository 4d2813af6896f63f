#if GOOGLE_CUDA

#include <memory>
#include <string>
#include <vector>

#include "core/trace.h"
#include "exchange/host/pending_calls.h"
#include "grouping/group_ids.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/lookup_state.h"
#include "tf/support/nccl_ranks.h"
#include "tf/support/sums_state.h"
#include "tf/support/tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::AllocatorAttributes;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class SumsGroupLookupOp : public OpKernel {
 public:
  explicit SumsGroupLookupOp(OpKernelConstruction* context)
      : OpKernel(context), attrs_(context), local_(attrs_), ranks_(context) {
    if (!context->status().ok()) return;  // GroupAttrs has rejected the attributes
    OP_REQUIRES_OK(context, context->GetAttr("num_rows", &num_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("owners", &owners_));
    OP_REQUIRES_OK(context, context->GetAttr("gradient_scale", &gradient_scale_));
    OP_REQUIRES_OK(context, context->GetAttr("description", &description_));
    tensorflow::DataType comm_dtype;
    OP_REQUIRES_OK(context, context->GetAttr("comm_dtype", &comm_dtype));
    comm_type_ = ToCore(comm_dtype);
    OP_REQUIRES(context,
                num_rows_.size() == attrs_.dims.size() && owners_.size() == num_rows_.size(),
                absl::InvalidArgumentError("num_rows, owners: expected one per table"));
    OP_REQUIRES(
        context, num_outputs() == attrs_.NumOutputs() + 3,
        absl::InvalidArgumentError("num_outputs: expected " + std::to_string(attrs_.NumOutputs())));
    for (size_t t = 0; t < num_rows_.size(); ++t) OP_REQUIRES_OK(context, TakeOwner(t));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("lookup by owners' sums");
    const PendingScope pending(name(), "a lookup on GPUs of '" + attrs_.table_names[0] + "'");
    std::shared_ptr<Communicator> communicator;
    OP_REQUIRES_OK(context, ranks_.Join(context, &communicator));
    Tables tables;
    OP_REQUIRES_OK(context, tables.Read(context, local_, /*keyed=*/{}));
    OP_REQUIRES_OK(context, CheckParts(tables.get()));
    std::vector<Feature> features;
    BatchInput batch;
    OP_REQUIRES_OK(context, attrs_.MakeFeatures(context, BatchCheck::kSizes, &batch, &features));
    OP_REQUIRES_OK(context, CheckSortable(batch.view));
    OP_REQUIRES_OK(context, attrs_.AllocateOutputs(context, &features));
    std::shared_ptr<SumsState> held;
    bool on_all_ranks = false;
    const absl::Status status = CatchErrors([&] {
      held = MakeState(context, tables.get(), features, batch, communicator);
      const absl::Status asked = RequestCounts(batch.extents, held.get());
      on_all_ranks = !asked.ok();
      return on_all_ranks ? asked : LookUp(context, held.get());
    });
    if (!status.ok() && !on_all_ranks) AbortAlone(status, communicator.get());
    OP_REQUIRES_OK(context, status);
    OP_REQUIRES_OK(context, OutputState(context, std::move(held)));
  }

 private:
  // Checks the owner of table t, and sets the dim of its part.
  absl::Status TakeOwner(size_t t) {
    const int owner = owners_[t];
    const std::string table = "table '" + attrs_.table_names[t] + "': expected ";
    if (owner < TableOwner::kRows || owner >= ranks_.num_ranks()) {
      return absl::InvalidArgumentError(table + "an owner of -2 to " +
                                        std::to_string(ranks_.num_ranks() - 1) + ", got " +
                                        std::to_string(owner));
    }
    if (num_rows_[t] < 0) return absl::InvalidArgumentError(table + "num_rows of at least 0");
    if (owner != TableOwner::kColumns) return absl::OkStatus();
    if (attrs_.dims[t] % ranks_.num_ranks() != 0 || attrs_.max_norms[t] > 0) {
      return absl::InvalidArgumentError(
          table + "a dim that the ranks divide, and no max_norm, of a table by columns");
    }
    local_.dims[t] = attrs_.dims[t] / ranks_.num_ranks();
    return absl::OkStatus();
  }

  absl::Status CheckParts(const std::vector<Table>& tables) const {
    for (size_t t = 0; t < tables.size(); ++t) {
      int64_t expected = num_rows_[t];
      if (owners_[t] == TableOwner::kRows) {
        expected = (expected - ranks_.rank() + ranks_.num_ranks() - 1) / ranks_.num_ranks();
      } else if (owners_[t] >= 0 && owners_[t] != ranks_.rank()) {
        expected = 0;
      }
      if (tables[t].num_rows == expected) continue;
      return absl::InvalidArgumentError("table '" + attrs_.table_names[t] + "': expected the " +
                                        std::to_string(expected) + " rows of rank " +
                                        std::to_string(ranks_.rank()) + ", got " +
                                        std::to_string(tables[t].num_rows));
    }
    return absl::OkStatus();
  }

  std::shared_ptr<SumsState> MakeState(OpKernelContext* context, const std::vector<Table>& tables,
                                       const std::vector<Feature>& features,
                                       const BatchInput& batch,
                                       std::shared_ptr<Communicator> communicator) const {
    std::vector<TableOwner> owners;
    for (size_t t = 0; t < tables.size(); ++t) owners.push_back({owners_[t], num_rows_[t]});
    std::vector<Feature> own = features;
    const Group group = MakeGroup(attrs_, tables, own, batch.view);
    const Tensor* buffer;
    Require(std::string(context->input("batch", &buffer).message()));
    auto held = std::make_shared<SumsState>(context, group, std::move(owners), *buffer,
                                            std::move(communicator), description_, comm_type_);
    held->PointToOwnColumns(&own);
    held->get()->SetOutputs(own);
    held->gradient_scale = gradient_scale_;
    held->extents = batch.extents;
    return held;
  }

  // An error that it returns is the same on all ranks.
  absl::Status RequestCounts(const BatchExtents& batch, SumsState* held) const {
    const ExchangedCounts& counts = held->RequestCounts();
    std::vector<Table> whole;
    for (size_t t = 0; t < num_rows_.size(); ++t) {
      whole.push_back({nullptr, num_rows_[t], attrs_.dims[t], attrs_.max_norms[t]});
    }
    return ToStatus(counts, attrs_, whole, ranks_.rank(), batch);
  }

  absl::Status LookUp(OpKernelContext* context, SumsState* held) const {
    const GatheredBatch& gathered = held->get()->gathered();
    const int64_t num_samples = gathered.num_samples(), num_ids = gathered.num_ids();
    TF_RETURN_IF_ERROR(CheckSortable({nullptr, nullptr, nullptr, num_samples, num_ids}));
    const int first = static_cast<int>(attrs_.NumOutputs());
    Tensor *buffer, *sizes;
    TF_RETURN_IF_ERROR(context->allocate_output(
        first, TensorShape({LayOutBatch(num_samples, num_ids, attrs_.weighted).size}), &buffer));
    const auto num_parts = static_cast<int64_t>(gathered.sizes().size());
    TF_RETURN_IF_ERROR(context->allocate_output(first + 1, TensorShape({num_parts, 2}), &sizes));
    for (int64_t p = 0; p < num_parts; ++p) {
      sizes->matrix<int64_t>()(p, 0) = gathered.sizes()[p].num_samples;
      sizes->matrix<int64_t>()(p, 1) = gathered.sizes()[p].num_ids;
    }
    held->get()->LookUp(
        ViewBatch(buffer->flat<float>().data(), num_samples, num_ids, attrs_.weighted),
        StreamOf(context));
    held->tensors()->GiveAwayAllBut(SumsLookup::kKept);
    return absl::OkStatus();
  }

  // The variant is in host memory although the output is on the GPU.
  static absl::Status OutputState(OpKernelContext* context, std::shared_ptr<SumsState> held) {
    AllocatorAttributes on_host;
    on_host.set_on_host(true);
    Tensor* state;
    TF_RETURN_IF_ERROR(
        context->allocate_output(context->num_outputs() - 1, TensorShape({}), &state, on_host));
    state->scalar<tensorflow::Variant>()() = SumsStateVariant{std::move(held)};
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;
  GroupAttrs local_;  // with the dims of this rank's parts
  const NcclRanks ranks_;
  std::vector<int64_t> num_rows_;  // of the whole tables
  std::vector<int32_t> owners_;    // of TableOwner
  float gradient_scale_;
  std::string description_;
  DataType comm_type_;
};

REGISTER_FOR_ROW_TYPES(Name("GroupEmbedding>SumsGroupLookup")
                           .Device(tensorflow::DEVICE_GPU)
                           .HostMemory("sizes")
                           .HostMemory("order")
                           .HostMemory("gathered_sizes"),
                       Guarded<SumsGroupLookupOp>);

}  // namespace
}  // namespace group_embedding

#endif  // GOOGLE_CUDA
