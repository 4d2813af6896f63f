#if GOOGLE_CUDA

#include <memory>
#include <string>
#include <vector>

#include "core/trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tf/kernels/device.h"
#include "tf/kernels/group_attrs.h"
#include "tf/kernels/held_group.h"
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
    TF_RETURN_IF_ERROR(held->MakeRequests(&ids));
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

#define REGISTER(type)                                        \
  REGISTER_KERNEL_BUILDER(Name("ShardedGroupLookup")          \
                              .Device(tensorflow::DEVICE_GPU) \
                              .TypeConstraint<type>("dtype")  \
                              .HostMemory("sizes")            \
                              .HostMemory("order"),           \
                          ShardedGroupLookupOp)
REGISTER(float);
REGISTER(Eigen::half);
REGISTER(Eigen::bfloat16);
#undef REGISTER

}  // namespace
}  // namespace group_embedding

#endif  // GOOGLE_CUDA
