#if GOOGLE_CUDA

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/trace.h"
#include "exchange/gpu/part_bytes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/locate_requests.h"
#include "tf/support/lookup_state.h"
#include "tf/support/peer_buffer_tensor.h"
#include "tf/support/tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Inputs: tables, batch, sizes, grads, state, order. Outputs: requests, request_sizes,
// request_grads, weight_grad.
class SendGroupGradientsOp : public OpKernel {
 public:
  explicit SendGroupGradientsOp(OpKernelConstruction* context)
      : OpKernel(context), attrs_(context) {
    if (!context->status().ok()) return;  // GroupAttrs has rejected the attributes
    OP_REQUIRES_OK(context, context->GetAttr("grad_features", &grad_features_));
    OP_REQUIRES_OK(context, context->GetAttr("num_parts", &num_parts_));
    OP_REQUIRES_OK(context, context->GetAttr("is_other_batch", &is_other_batch_));
    OP_REQUIRES_OK(context, context->GetAttr("keyed", &keyed_));
    clips_ = std::any_of(attrs_.max_norms.begin(), attrs_.max_norms.end(),
                         [](float max_norm) { return max_norm > 0; });
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("send gradients");
    std::shared_ptr<LookupState> held;
    OP_REQUIRES_OK(context, ReadState(context, &held));
    std::vector<Feature> features;
    BatchInput batch;
    OP_REQUIRES_OK(context, attrs_.MakeFeatures(context, BatchCheck::kSizes, &batch, &features));
    OP_REQUIRES_OK(context, CheckSortable(batch.view));
    OP_REQUIRES_OK(context, CheckBelongs(*held, batch.extents));
    OP_REQUIRES_OK(context, attrs_.ReadGradients(context, grad_features_, &features));
    Tables tables;  // locked until the kernels that read their rows are enqueued
    if (attrs_.weighted || clips_ || (is_other_batch_ && !keyed_.empty())) {
      OP_REQUIRES_OK(context, tables.Read(context, attrs_, keyed_));
    }
    const std::shared_ptr<Communicator> communicator = held->communicator();
    const absl::Status status = CatchErrors([&] {
      held->tensors()->EnterOp(context);
      if (attrs_.weighted || (clips_ && !is_other_batch_)) {
        held->get()->UseRows(tables.get(), StreamOf(context));
      }
      TF_RETURN_IF_ERROR(WeightGrad(context, held.get(), features, batch.view.num_ids));
      if (is_other_batch_) {
        TF_RETURN_IF_ERROR(RouteAgain(context, tables, features, batch, &held));
      }
      return Send(context, held.get(), features);
    });
    if (!status.ok()) AbortAlone(status, communicator.get());
    OP_REQUIRES_OK(context, status);
  }

 private:
  absl::Status ReadState(OpKernelContext* context, std::shared_ptr<LookupState>* held) const {
    const Tensor* state;
    TF_RETURN_IF_ERROR(context->input("state", &state));
    const auto* content = state->dims() == 0
                              ? state->scalar<tensorflow::Variant>()().get<LookupStateVariant>()
                              : nullptr;
    if (content == nullptr || content->held == nullptr) {
      return absl::InvalidArgumentError("state: expected that of a lookup");
    }
    *held = content->held;
    return absl::OkStatus();
  }

  // Checks that the lookup that made the state had the same tables and, unless is_other_batch, the
  // same numbers of samples and ids per feature.
  absl::Status CheckBelongs(const LookupState& held, const BatchExtents& batch) const {
    const int64_t num_tables = static_cast<int64_t>(attrs_.dims.size());
    const int64_t num_parts = num_tables * held.communicator()->num_ranks();
    bool belongs = held.dims == attrs_.dims && num_parts_ == num_parts;
    belongs &= held.table_of_feature == attrs_.table_of_feature;
    belongs &= is_other_batch_ || (held.extents.first_samples == batch.first_samples &&
                                   held.extents.first_ids == batch.first_ids);
    if (belongs) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "state: expected that of a lookup of these tables and features, and, unless "
        "is_other_batch, of this batch");
  }

  absl::Status WeightGrad(OpKernelContext* context, LookupState* held,
                          const std::vector<Feature>& features, int64_t num_ids) const {
    Tensor* weight_grad;
    TF_RETURN_IF_ERROR(context->allocate_output(
        context->num_outputs() - 1, TensorShape({attrs_.weighted ? num_ids : 0}), &weight_grad));
    if (!attrs_.weighted) return absl::OkStatus();
    held->get()->WeightGrad(features, weight_grad->flat<float>().data(), StreamOf(context));
    return absl::OkStatus();
  }

  // Replaces `held` by the state of another batch, whose rows are fetched only if gradients are
  // clipped. shards: this rank's tables, read if gradients are clipped or tables have keys.
  absl::Status RouteAgain(OpKernelContext* context, const Tables& shards,
                          const std::vector<Feature>& features, const BatchInput& batch,
                          std::shared_ptr<LookupState>* held) const {
    const std::vector<KeyedFeature> keyed = KeyedFeaturesOf(keyed_, batch, features);
    std::vector<Table> tables;
    for (size_t t = 0; t < attrs_.dims.size(); ++t) {
      const void* rows = clips_ ? shards.get()[t].rows : nullptr;
      tables.push_back({rows, (*held)->num_rows[t], attrs_.dims[t], attrs_.max_norms[t]});
    }
    for (const int32_t t : keyed_) {
      tables[t].num_rows = NumberedRows(keyed, t, (*held)->communicator()->num_ranks());
    }
    const Tensor* buffer;
    TF_RETURN_IF_ERROR(context->input("batch", &buffer));
    Group group = MakeGroup(attrs_, tables, features, batch.view);
    group.invalid_ids.read_zeros = true;  // the lookup has reported bad ids
    auto other =
        std::make_shared<LookupState>(context, group, *buffer, (*held)->communicator(),
                                      (*held)->get()->description(), (*held)->comm_type, keyed);
    other->gradient_scale = (*held)->gradient_scale;
    TF_RETURN_IF_ERROR(ToStatus(other->RequestCounts(), attrs_, tables,
                                (*held)->communicator()->rank(), batch.extents));
    int64_t* ids;
    TF_RETURN_IF_ERROR(other->MakeRequests(&ids));
    // Negative steps and no training: the lookup has counted the keys already, and holds their
    // rows.
    RequestLocator locator(context, shards, keyed_, std::vector<int64_t>(keyed_.size(), -1),
                           std::vector<bool>(keyed_.size(), false));
    const auto locate = [&](int64_t* requests, const int64_t* times) {
      return locator.Locate(other->get()->requested(), requests, times);
    };
    if (clips_) {
      other->get()->FetchRows(ids, locate, StreamOf(context));
    } else {
      other->get()->SendRequests(ids, locate, StreamOf(context));
    }
    if (!keyed_.empty()) other->requests = locator.Hold(other->requests, /*training=*/true);
    *held = std::move(other);
    return absl::OkStatus();
  }

  absl::Status Send(OpKernelContext* context, LookupState* held,
                    const std::vector<Feature>& features) const {
    const std::vector<ReceivedGradients> received =
        held->get()->SendGradients(features, StreamOf(context));
    context->set_output(0, held->requests);
    Tensor* sizes;
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_parts_, 2}), &sizes));
    const int num_tables = static_cast<int>(attrs_.dims.size());
    for (int p = 0; p < num_parts_; ++p) {
      const int64_t num_rows = held->get()->requested()[p];
      sizes->matrix<int64_t>()(p, 0) = sizes->matrix<int64_t>()(p, 1) = num_rows;
    }
    for (int p = 0, rank = 0; rank * num_tables < num_parts_; ++rank) {
      const bool is_own = rank == held->communicator()->rank();
      const char* at = received[rank].gradients;
      for (int t = 0; t < num_tables; ++t, ++p) {
        const TensorShape shape({received[rank].counts[t], attrs_.dims[t]});
        Tensor grad;
        if (received[rank].peer_buffer != nullptr) {
          grad = PeerBufferTensor(received[rank].peer_buffer, at, attrs_.dtype, shape);
        } else {
          TF_RETURN_IF_ERROR(held->tensors()->View(is_own ? "own_gradients" : "received_gradients",
                                                   at, attrs_.dtype, shape, &grad));
        }
        context->set_output(2 + p, grad);
        at += PartBytes(shape.dim_size(0), attrs_.dims[t] * SizeOf(attrs_.core_dtype));
      }
    }
    // A second gradient of this lookup may be computed before these outputs are used.
    held->tensors()->GiveAway("own_gradients");
    held->tensors()->GiveAway("received_gradients");
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;
  std::vector<int32_t> grad_features_, keyed_;
  int num_parts_;
  bool is_other_batch_;
  bool clips_;  // some table has a max_norm
};

REGISTER_FOR_ROW_TYPES(Name("GroupEmbedding>SendGroupGradients")
                           .Device(tensorflow::DEVICE_GPU)
                           .HostMemory("sizes")
                           .HostMemory("order")
                           .HostMemory("request_sizes"),
                       Guarded<SendGroupGradientsOp>);

}  // namespace
}  // namespace group_embedding

#endif  // GOOGLE_CUDA
