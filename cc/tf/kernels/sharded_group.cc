#if GOOGLE_CUDA

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/trace.h"
#include "exchange/exchanged_group.h"
#include "exchange/part_bytes.h"
#include "exchange/request_batch.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tf/kernels/device.h"
#include "tf/kernels/group_attrs.h"
#include "tf/kernels/nccl_ranks.h"
#include "tf/kernels/tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::AllocatorAttributes;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TypeIndex;  // the macro of variants names it so

// An ExchangedGroup with the memory that it works in: what a lookup leaves to the way back.
class HeldGroup {
 public:
  HeldGroup(OpKernelContext* context, const Group& group, const Tensor& batch,
            std::shared_ptr<Communicator> communicator, const std::string& description,
            DataType comm_type)
      : comm_type(comm_type),
        batch_(batch),
        communicator_(std::move(communicator)),
        context_(context) {
    const auto give = [this](std::map<std::string, Tensor>* pieces, AllocatorAttributes where) {
      return [=, this](const std::string& name, int64_t bytes) {
        return Get(&(*pieces)[name], bytes, where);
      };
    };
    AllocatorAttributes page_locked;
    page_locked.set_on_host(true);
    page_locked.set_gpu_compatible(true);
    group_ = std::make_unique<ExchangedGroup>(
        group, communicator_.get(), description, comm_type,
        ShardedGroup::Memory{give(&on_device_, {}), give(&on_host_, page_locked)});
  }

  // From now on an op of this context uses it.
  void EnterOp(OpKernelContext* context) { context_ = context; }

  ExchangedGroup* get() const { return group_.get(); }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  // A tensor of what lies at `data` in one of the pieces of device memory.
  absl::Status View(const std::string& piece, const char* data, tensorflow::DataType dtype,
                    const TensorShape& shape, Tensor* view) const {
    const Tensor& whole = on_device_.at(piece);
    const int64_t bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
    const int64_t at = bytes == 0 ? 0 : data - static_cast<const char*>(whole.data());
    return view->BitcastFrom(whole.Slice(at, at + bytes), dtype, shape);
  }

  const DataType comm_type;
  Tensor requests;       // the batch, as SendGroupGradients gives it
  float gradient_scale;  // of its weights
  std::vector<int64_t> num_rows;

 private:
  void* Get(Tensor* piece, int64_t bytes, AllocatorAttributes where) {
    if (piece->NumElements() < bytes || !piece->IsInitialized()) {
      const absl::Status status = context_->allocate_temp(
          tensorflow::DT_INT8, TensorShape({std::max<int64_t>(bytes, 1)}), piece, where);
      if (!status.ok()) throw std::runtime_error(std::string(status.message()));
    }
    return piece->data();
  }

  const Tensor batch_;  // kept alive
  const std::shared_ptr<Communicator> communicator_;
  OpKernelContext* context_;
  std::map<std::string, Tensor> on_device_, on_host_;
  std::unique_ptr<ExchangedGroup> group_;
};

// What a variant holds. It stays in the process.
struct HeldGroupState {
  std::shared_ptr<HeldGroup> held;

  std::string TypeName() const { return "group_embedding::HeldGroupState"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

// What eager autodiff makes of every output that the loss does not depend on.
absl::Status ZerosLike(OpKernelContext*, const HeldGroupState&, HeldGroupState* zeros) {
  *zeros = HeldGroupState();
  return absl::OkStatus();
}

// The batch of `requests` but for its ids; returns where these go.
absl::Status MakeRequests(OpKernelContext* context, HeldGroup* held, int64_t** ids) {
  const int64_t num_requests = held->get()->num_requests();
  const BatchLayout at = LayOutRequests(num_requests);
  TF_RETURN_IF_ERROR(
      context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({at.size}), &held->requests));
  float* buffer = held->requests.flat<float>().data();
  *ids = reinterpret_cast<int64_t*>(buffer + at.ids);
  return ToStatus(
      WriteRequestBatchCuda(num_requests, held->gradient_scale, buffer, StreamOf(context)),
      "WriteRequestBatch");
}

// Of the group's attributes and inputs, what both ops make.
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

class ShardedGroupLookupOp : public OpKernel {
 public:
  explicit ShardedGroupLookupOp(OpKernelConstruction* context)
      : OpKernel(context), attrs_(context), ranks_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_rows", &num_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("gradient_scale", &gradient_scale_));
    OP_REQUIRES_OK(context, context->GetAttr("description", &description_));
    tensorflow::DataType comm_dtype;
    OP_REQUIRES_OK(context, context->GetAttr("comm_dtype", &comm_dtype));
    comm_type_ = ToCore(comm_dtype);
    OP_REQUIRES(context, num_rows_.size() == attrs_.dims.size(),
                absl::InvalidArgumentError("num_rows: expected one per table"));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("sharded lookup");
    std::shared_ptr<Communicator> communicator;
    OP_REQUIRES_OK(context, ranks_.Join(&communicator));
    Tables locked;
    OP_REQUIRES_OK(context, locked.Read(context, attrs_, /*keyed=*/{}));
    std::vector<Table> tables = locked.get();
    OP_REQUIRES_OK(context, CheckShards(&tables));
    const int num_tables = static_cast<int>(tables.size());
    const Tensor &batch = context->input(num_tables), &sizes = context->input(num_tables + 1);
    std::vector<Feature> features;
    Batch view;
    OP_REQUIRES_OK(context, attrs_.MakeFeatures(batch, sizes, &features, &view));
    OP_REQUIRES_OK(context, CheckSortable(view));
    OP_REQUIRES_OK(context, attrs_.AllocateOutputs(context, &features));
    std::shared_ptr<HeldGroup> held;
    OP_REQUIRES_OK(context, CatchErrors([&] {
                     const Group group = MakeGroup(attrs_, tables, features, view);
                     held = std::make_shared<HeldGroup>(context, group, batch, communicator,
                                                        description_, comm_type_);
                     held->gradient_scale = gradient_scale_;
                     held->num_rows = num_rows_;
                     return Run(context, tables, held.get());
                   }));
    OP_REQUIRES_OK(context, OutputState(context, std::move(held)));
  }

 private:
  // Gives the tables the number of rows that they have on all ranks together.
  absl::Status CheckShards(std::vector<Table>* tables) const {
    for (size_t t = 0; t < tables->size(); ++t) {
      const int64_t expected =
          (num_rows_[t] - ranks_.rank() + ranks_.num_ranks() - 1) / ranks_.num_ranks();
      if ((*tables)[t].num_rows != expected) {
        return absl::InvalidArgumentError("table '" + attrs_.table_names[t] + "': expected the " +
                                          std::to_string(expected) + " rows of rank " +
                                          std::to_string(ranks_.rank()) + ", got " +
                                          std::to_string((*tables)[t].num_rows));
      }
      (*tables)[t].num_rows = num_rows_[t];
    }
    return absl::OkStatus();
  }

  absl::Status Run(OpKernelContext* context, const std::vector<Table>& tables,
                   HeldGroup* held) const {
    const cudaStream_t stream = StreamOf(context);
    const Fault none;
    Tensor fault;
    TF_RETURN_IF_ERROR(AllocateScratch(context, sizeof(Fault), &fault));
    TF_RETURN_IF_ERROR(ToStatus(
        cudaMemcpyAsync(fault.data(), &none, sizeof(Fault), cudaMemcpyHostToDevice, stream),
        "cudaMemcpy"));
    const ToldCounts& counts = held->get()->Ask(static_cast<Fault*>(fault.data()), stream);
    if (!counts.disagreement.empty()) return absl::InvalidArgumentError(counts.disagreement);
    if (counts.fault_rank >= 0) {
      const absl::Status status = attrs_.ToStatus(counts.fault, tables);
      return absl::InvalidArgumentError("rank " + std::to_string(counts.fault_rank) + ": " +
                                        std::string(status.message()));
    }
    int64_t* ids;
    TF_RETURN_IF_ERROR(MakeRequests(context, held, &ids));
    held->get()->FetchRows(ids, stream);
    held->get()->LookUpFetched(stream);
    return absl::OkStatus();
  }

  // As TensorFlow's own lists have it: a variant is on the host and counts as where its op is.
  static absl::Status OutputState(OpKernelContext* context, std::shared_ptr<HeldGroup> held) {
    AllocatorAttributes on_host;
    on_host.set_on_host(true);
    Tensor* state;
    TF_RETURN_IF_ERROR(
        context->allocate_output(context->num_outputs() - 1, TensorShape({}), &state, on_host));
    state->scalar<tensorflow::Variant>()() = HeldGroupState{std::move(held)};
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;
  const NcclRanks ranks_;
  std::vector<int64_t> num_rows_;
  float gradient_scale_;
  std::string description_;
  DataType comm_type_;
};

// Inputs: tables, batch, sizes, grads, state, order. Outputs: requests, request_sizes,
// request_grads, weight_grad.
class SendGroupGradientsOp : public OpKernel {
 public:
  explicit SendGroupGradientsOp(OpKernelConstruction* context)
      : OpKernel(context), attrs_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("grad_features", &grad_features_));
    OP_REQUIRES_OK(context, context->GetAttr("num_parts", &num_parts_));
    OP_REQUIRES_OK(context, context->GetAttr("is_other_batch", &is_other_batch_));
    clips_ = std::any_of(attrs_.max_norms.begin(), attrs_.max_norms.end(),
                         [](float max_norm) { return max_norm > 0; });
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("send gradients");
    std::shared_ptr<HeldGroup> held;
    OP_REQUIRES_OK(context, ReadState(context, &held));
    const int num_tables = static_cast<int>(attrs_.dims.size());
    const Tensor &batch = context->input(num_tables), &sizes = context->input(num_tables + 1);
    std::vector<Feature> features;
    Batch view;
    OP_REQUIRES_OK(context, attrs_.MakeFeatures(batch, sizes, &features, &view));
    OP_REQUIRES_OK(context, CheckSortable(view));
    OP_REQUIRES_OK(context, attrs_.ReadGradients(context, grad_features_, &features));
    Tables tables;  // locked until what reads their rows is enqueued
    if (attrs_.weighted || clips_) OP_REQUIRES_OK(context, tables.Read(context, attrs_, {}));
    OP_REQUIRES_OK(
        context, CatchErrors([&] {
          held->EnterOp(context);
          if (attrs_.weighted || (clips_ && !is_other_batch_)) {
            held->get()->FindRows(tables.get(), StreamOf(context));
          }
          TF_RETURN_IF_ERROR(WeightGrad(context, held.get(), features, view.num_ids));
          if (is_other_batch_) {
            TF_RETURN_IF_ERROR(RouteAgain(context, tables.get(), features, batch, view, &held));
          }
          return Send(context, held.get(), features);
        }));
  }

 private:
  absl::Status ReadState(OpKernelContext* context, std::shared_ptr<HeldGroup>* held) const {
    const Tensor& state = context->input(context->num_inputs() - 2);
    const auto* content = state.scalar<tensorflow::Variant>()().get<HeldGroupState>();
    if (content == nullptr || content->held == nullptr) {
      return absl::InvalidArgumentError("state: expected that of a lookup");
    }
    *held = content->held;
    return absl::OkStatus();
  }

  absl::Status WeightGrad(OpKernelContext* context, HeldGroup* held,
                          const std::vector<Feature>& features, int64_t num_ids) const {
    Tensor* weight_grad;
    TF_RETURN_IF_ERROR(context->allocate_output(
        context->num_outputs() - 1, TensorShape({attrs_.weighted ? num_ids : 0}), &weight_grad));
    if (!attrs_.weighted) return absl::OkStatus();
    held->get()->WeightGrad(features, weight_grad->flat<float>().data(), StreamOf(context));
    return absl::OkStatus();
  }

  // Replaces `held` by the group of another batch, whose rows nobody reads unless gradients are
  // clipped. shards: read then.
  absl::Status RouteAgain(OpKernelContext* context, const std::vector<Table>& shards,
                          const std::vector<Feature>& features, const Tensor& batch,
                          const Batch& view, std::shared_ptr<HeldGroup>* held) const {
    std::vector<Table> tables;
    for (size_t t = 0; t < attrs_.dims.size(); ++t) {
      const void* rows = clips_ ? shards[t].rows : nullptr;
      tables.push_back({rows, (*held)->num_rows[t], attrs_.dims[t], attrs_.max_norms[t]});
    }
    Group group = MakeGroup(attrs_, tables, features, view);
    group.invalid_ids.read_zeros = true;  // the lookup has seen to them
    auto other = std::make_shared<HeldGroup>(context, group, batch, (*held)->communicator(),
                                             (*held)->get()->description(), (*held)->comm_type);
    other->gradient_scale = (*held)->gradient_scale;
    const ToldCounts& counts = other->get()->Ask(nullptr, StreamOf(context));
    if (!counts.disagreement.empty()) return absl::InvalidArgumentError(counts.disagreement);
    int64_t* ids;
    TF_RETURN_IF_ERROR(MakeRequests(context, other.get(), &ids));
    clips_ ? other->get()->FetchRows(ids, StreamOf(context))
           : other->get()->NameRows(ids, StreamOf(context));
    *held = std::move(other);
    return absl::OkStatus();
  }

  absl::Status Send(OpKernelContext* context, HeldGroup* held,
                    const std::vector<Feature>& features) const {
    const std::vector<ShardedGroup::Received> received =
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
        TF_RETURN_IF_ERROR(held->View(is_own ? "own_gradients" : "received_gradients", at,
                                      attrs_.dtype, shape, &grad));
        context->set_output(2 + p, grad);
        at += PartBytes(shape.dim_size(0), attrs_.dims[t] * SizeOf(attrs_.core_dtype));
      }
    }
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;
  std::vector<int32_t> grad_features_;
  int num_parts_;
  bool is_other_batch_;
  bool clips_;  // some table has a max_norm
};

REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                         tensorflow::DEVICE_GPU, HeldGroupState, ZerosLike);

#define REGISTER(type)                                        \
  REGISTER_KERNEL_BUILDER(Name("ShardedGroupLookup")          \
                              .Device(tensorflow::DEVICE_GPU) \
                              .TypeConstraint<type>("dtype")  \
                              .HostMemory("sizes")            \
                              .HostMemory("order"),           \
                          ShardedGroupLookupOp);              \
  REGISTER_KERNEL_BUILDER(Name("SendGroupGradients")          \
                              .Device(tensorflow::DEVICE_GPU) \
                              .TypeConstraint<type>("dtype")  \
                              .HostMemory("sizes")            \
                              .HostMemory("order")            \
                              .HostMemory("request_sizes"),   \
                          SendGroupGradientsOp)
REGISTER(float);
REGISTER(Eigen::half);
REGISTER(Eigen::bfloat16);
#undef REGISTER

}  // namespace
}  // namespace group_embedding

#endif  // GOOGLE_CUDA
