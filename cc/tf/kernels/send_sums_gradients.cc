#if GOOGLE_CUDA

#include <memory>
#include <string>
#include <vector>

#include "core/trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/lookup_state.h"
#include "tf/support/peer_buffer_tensor.h"
#include "tf/support/sums_state.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Reads the batch of an op, and checks that it is that of the lookup which made the state.
absl::Status ReadLookup(OpKernelContext* context, const GroupAttrs& attrs,
                        std::shared_ptr<SumsState>* held, BatchInput* batch,
                        std::vector<Feature>* features) {
  TF_RETURN_IF_ERROR(ReadSumsState(context, held));
  TF_RETURN_IF_ERROR(attrs.MakeFeatures(context, BatchCheck::kSizes, batch, features));
  const BatchExtents& extents = (*held)->extents;
  if (extents.first_samples == batch->extents.first_samples &&
      extents.first_ids == batch->extents.first_ids &&
      (*held)->local_dims.size() == attrs.dims.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("state: expected that of a lookup of these tables and batch");
}

// Runs a step of the state's lookup, whose ranks all come or none.
template <typename Step>
void RunStep(OpKernelContext* context, SumsState* held, const Step& step) {
  const std::shared_ptr<Communicator> communicator = held->communicator();
  const absl::Status status = CatchErrors([&] {
    held->tensors()->EnterOp(context);
    return step();
  });
  if (!status.ok()) AbortAlone(status, communicator.get());
  OP_REQUIRES_OK(context, status);
}

// Inputs: batch, sizes, grads, state, order. Outputs: sums_grads.
class SendSumsGradientsOp : public OpKernel {
 public:
  explicit SendSumsGradientsOp(OpKernelConstruction* context) : OpKernel(context), attrs_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("grad_features", &grad_features_));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("send gradients");
    std::shared_ptr<SumsState> held;
    BatchInput batch;
    std::vector<Feature> features;
    OP_REQUIRES_OK(context, ReadLookup(context, attrs_, &held, &batch, &features));
    const int64_t num_parts = static_cast<int64_t>(held->get()->gathered().sizes().size());
    OP_REQUIRES(context, num_outputs() == num_parts,
                absl::InvalidArgumentError("num_parts: expected " + std::to_string(num_parts)));
    OP_REQUIRES_OK(context, attrs_.ReadGradients(context, grad_features_, &features));
    held->PointToOwnColumns(&features);
    RunStep(context, held.get(), [&] { return Send(context, held.get(), features); });
  }

 private:
  absl::Status Send(OpKernelContext* context, SumsState* held,
                    const std::vector<Feature>& features) const {
    SumsLookup* lookup = held->get();
    NamedTensors* tensors = held->tensors();
    const std::vector<char*> gradients =
        lookup->SendGradients(features, held->gradient_scale, StreamOf(context));
    for (size_t p = 0; p < gradients.size(); ++p) {
      const int64_t num_samples = lookup->gathered().sizes()[p].num_samples;
      const int32_t table = attrs_.table_of_feature[p % attrs_.table_of_feature.size()];
      const TensorShape shape({num_samples, held->local_dims[table]});
      Tensor grad(attrs_.dtype, shape);
      if (shape.num_elements() > 0) {
        TF_RETURN_IF_ERROR(View(*lookup, *tensors, gradients[p], shape, &grad));
      }
      context->set_output(static_cast<int>(p), grad);
    }
    // A second gradient of this lookup may be computed before these outputs are used.
    tensors->GiveAwayAllBut(SumsLookup::kKept);
    return absl::OkStatus();
  }

  absl::Status View(const SumsLookup& lookup, const NamedTensors& tensors, const char* data,
                    const TensorShape& shape, Tensor* grad) const {
    for (const char* piece : {"own_gradients", "unpacked_gradients", "received_gradients"}) {
      if (tensors.Has(piece, data)) return tensors.View(piece, data, attrs_.dtype, shape, grad);
    }
    *grad = PeerBufferTensor(lookup.gradients_held(), data, attrs_.dtype, shape);
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;
  std::vector<int32_t> grad_features_;
};

// Inputs: batch, sizes, gathered_grad, state, order. Output: weight_grad.
class ReturnWeightGradientsOp : public OpKernel {
 public:
  explicit ReturnWeightGradientsOp(OpKernelConstruction* context)
      : OpKernel(context), attrs_(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<SumsState> held;
    BatchInput batch;
    std::vector<Feature> features;
    OP_REQUIRES_OK(context, ReadLookup(context, attrs_, &held, &batch, &features));
    const Tensor* of_all;
    OP_REQUIRES_OK(context, context->input("gathered_grad", &of_all));
    OP_REQUIRES(context,
                attrs_.weighted && of_all->NumElements() == held->get()->gathered().num_ids(),
                absl::InvalidArgumentError("gathered_grad: expected one for each gathered id"));
    Tensor* own;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({batch.view.num_ids}), &own));
    RunStep(context, held.get(), [&] {
      held->get()->ReturnWeightGradients(of_all->flat<float>().data(), own->flat<float>().data(),
                                         StreamOf(context));
      held->tensors()->GiveAwayAllBut(SumsLookup::kKept);
      return absl::OkStatus();
    });
  }

 private:
  const GroupAttrs attrs_;
};

REGISTER_FOR_ROW_TYPES(Name("GroupEmbedding>SendSumsGradients")
                           .Device(tensorflow::DEVICE_GPU)
                           .HostMemory("sizes")
                           .HostMemory("order"),
                       Guarded<SendSumsGradientsOp>);
REGISTER_FOR_ROW_TYPES(Name("GroupEmbedding>ReturnWeightGradients")
                           .Device(tensorflow::DEVICE_GPU)
                           .HostMemory("sizes")
                           .HostMemory("order"),
                       Guarded<ReturnWeightGradientsOp>);

}  // namespace
}  // namespace group_embedding

#endif  // GOOGLE_CUDA
