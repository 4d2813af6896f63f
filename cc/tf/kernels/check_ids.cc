#include "fused/check_ids.h"

#include <string>
#include <vector>

#include "core/trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/batch_input.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class CheckIdsOp : public OpKernel {
 public:
  explicit CheckIdsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES_OK(context, ReadCombiners(context, &combiners_));
    OP_REQUIRES_OK(context, context->GetAttr("table_names", &table_names_));
    OP_REQUIRES_OK(context, context->GetAttr("feature_names", &feature_names_));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(context, context->GetAttr("prune_negative", &prune_negative_));
    const size_t num_features = table_of_feature_.size();
    OP_REQUIRES(
        context, combiners_.size() == num_features && feature_names_.size() == num_features,
        absl::InvalidArgumentError("combiners, feature_names: expected one for each feature"));
    for (const int32_t table : table_of_feature_) {
      OP_REQUIRES(context, table >= 0 && table < static_cast<int32_t>(table_names_.size()),
                  absl::InvalidArgumentError("table_of_feature: expected indices into tables"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("checking ids");
    const Tensor& num_rows = context->input(2);
    OP_REQUIRES(context,
                num_rows.shape() == TensorShape({static_cast<int64_t>(table_names_.size())}),
                absl::InvalidArgumentError("num_rows: expected one for each table"));
    BatchInput batch;
    const int64_t num_features = static_cast<int64_t>(table_of_feature_.size());
    OP_REQUIRES_OK(context,
                   ReadBatch(context, context->input(0), context->input(1), num_features, weighted_,
                             BatchCheck::kRowSplits, &feature_names_, &batch));
    std::vector<Feature> features;
    for (int64_t f = 0; f < num_features; ++f) {
      features.push_back({batch.extents.first_samples[f], batch.extents.num_samples(f), nullptr, 0,
                          table_of_feature_[f], combiners_[f]});
    }
    const int64_t* rows = num_rows.flat<int64_t>().data();
    const Fault fault = CheckIds(batch.view, features.data(), num_features, rows, prune_negative_,
                                 ThreadsOf(context));
    if (fault.kind == FaultKind::kNone) return;
    const int32_t table = table_of_feature_[fault.feature];
    context->SetStatus(absl::InvalidArgumentError(
        Describe(fault, feature_names_[fault.feature], table_names_[table], rows[table])));
  }

 private:
  std::vector<int32_t> table_of_feature_;
  std::vector<Combiner> combiners_;
  std::vector<std::string> table_names_, feature_names_;
  bool weighted_, prune_negative_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>CheckIds").Device(tensorflow::DEVICE_CPU),
                        Guarded<CheckIdsOp>);

}  // namespace
}  // namespace group_embedding
