// The ids of a request as one batch, read where the request has them.
#include <algorithm>
#include <string>
#include <vector>

#include "core/trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/serving/ops/request_threads.h"
#include "tf/serving/ops/served_request.h"
#include "tf/support/feature_reader.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::DataTypeString;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class ServedIdsOp : public OpKernel {
 public:
  explicit ServedIdsOp(OpKernelConstruction* context) : OpKernel(context), reader_(context) {
    int num_sparse = 0, num_weighted = 0;
    std::vector<tensorflow::DataType> values, partitions, weight_partitions;
    OP_REQUIRES_OK(context, context->GetAttr("inputs", &inputs_));
    OP_REQUIRES_OK(context, context->GetAttr("signatures", &signatures_));
    OP_REQUIRES_OK(context, context->GetAttr("value_types", &values));
    OP_REQUIRES_OK(context, context->GetAttr("partition_types", &partitions));
    OP_REQUIRES_OK(context, context->GetAttr("num_sparse", &num_sparse));
    OP_REQUIRES_OK(context, context->GetAttr("num_weighted", &num_weighted));
    OP_REQUIRES_OK(context, context->GetAttr("weight_partition_types", &weight_partitions));
    const size_t count =
        values.size() + partitions.size() + num_sparse + num_weighted + weight_partitions.size();
    OP_REQUIRES(context, inputs_.size() == count,
                absl::InvalidArgumentError("inputs: expected a position for each tensor"));
    using Types = std::vector<tensorflow::DataType>;
    lists_ = {{&FeatureTensors::values, values},
              {&FeatureTensors::partitions, partitions},
              {&FeatureTensors::dense_shapes, Types(num_sparse, tensorflow::DT_INT64)},
              {&FeatureTensors::weights, Types(num_weighted, tensorflow::DT_FLOAT)},
              {&FeatureTensors::weight_partitions, weight_partitions}};
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("grouping");
    FeatureTensors tensors;
    std::vector<FeatureIds> features;
    Tensor* batch;
    OP_REQUIRES_OK(context, FindTensors(&tensors));
    OP_REQUIRES_OK(context, reader_.Read(tensors, &features));
    OP_REQUIRES_OK(context, reader_.AllocateOutputs(context, features, &batch));
    const Fault fault = GroupIdsCpu(features.data(), reader_.num_features(), reader_.weighted(),
                                    batch->flat<float>().data(), RequestThreadsOf(context));
    OP_REQUIRES_OK(context, CheckRequest());
    OP_REQUIRES(context, fault.kind == FaultKind::kNone, reader_.ToStatus(fault, features));
  }

 private:
  // One of the op's lists of tensors, and the type of each.
  struct List {
    FeatureTensors::List FeatureTensors::*tensors;
    std::vector<tensorflow::DataType> types;
  };

  absl::Status FindTensors(FeatureTensors* tensors) const {
    const ServedRequest* const request = ServedRequest::Current();
    if (request == nullptr || std::find(signatures_.begin(), signatures_.end(),
                                        request->inputs.signature) == signatures_.end()) {
      return absl::InvalidArgumentError("expected a request of signature '" + signatures_.front() +
                                        "', whose inputs these ids are");
    }
    const std::vector<Tensor>& given = request->inputs.tensors;
    size_t next = 0;
    for (const List& list : lists_) {
      for (const tensorflow::DataType type : list.types) {
        const size_t position = inputs_[next++];
        if (position >= given.size()) {
          return absl::InvalidArgumentError("inputs: expected positions of a request's inputs");
        }
        const Tensor& tensor = given[position];
        if (tensor.dtype() != type) {
          return absl::InvalidArgumentError("input " + std::to_string(position) +
                                            " of the request: expected " + DataTypeString(type) +
                                            ", got " + DataTypeString(tensor.dtype()));
        }
        (tensors->*list.tensors).push_back(&tensor);
      }
    }
    return absl::OkStatus();
  }

  const FeatureReader reader_;
  std::vector<int32_t> inputs_;  // positions, list after list
  std::vector<std::string> signatures_;
  std::vector<List> lists_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedIds").Device(tensorflow::DEVICE_CPU),
                        Guarded<ServedIdsOp>);

}  // namespace
}  // namespace group_embedding
