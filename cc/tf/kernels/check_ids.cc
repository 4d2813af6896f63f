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

using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class CheckIdsOp : public OpKernel {
 public:
  explicit CheckIdsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_features", &num_features_));
    OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES_OK(context, ReadCombiners(context, &combiners_));
    OP_REQUIRES_OK(context, context->GetAttr("table_names", &table_names_));
    OP_REQUIRES_OK(context, context->GetAttr("feature_names", &feature_names_));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(context, context->GetAttr("prune_negative", &prune_negative_));
    const int64_t num_batches = context->num_outputs();
    OP_REQUIRES(context,
                static_cast<int64_t>(num_features_.size()) == num_batches &&
                    static_cast<int64_t>(weighted_.size()) == num_batches,
                absl::InvalidArgumentError("num_features, weighted: expected one for each batch"));
    int64_t total = 0;
    for (const int32_t count : num_features_) {
      OP_REQUIRES(context, count > 0, absl::InvalidArgumentError("num_features: expected > 0"));
      total += count;
    }
    const auto has_all = [total](const auto& list) {
      return static_cast<int64_t>(list.size()) == total;
    };
    OP_REQUIRES(context,
                has_all(table_of_feature_) && has_all(combiners_) && has_all(feature_names_),
                absl::InvalidArgumentError(
                    "table_of_feature, combiners, feature_names: expected one for each feature"));
    for (const int32_t table : table_of_feature_) {
      OP_REQUIRES(context, table >= 0 && table < static_cast<int32_t>(table_names_.size()),
                  absl::InvalidArgumentError("table_of_feature: expected indices into num_rows"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("checking ids");
    OpInputList batches, sizes;
    const Tensor* num_rows;
    OP_REQUIRES_OK(context, context->input_list("batches", &batches));
    OP_REQUIRES_OK(context, context->input_list("sizes", &sizes));
    OP_REQUIRES_OK(context, context->input("num_rows", &num_rows));
    OP_REQUIRES(context,
                num_rows->shape() == TensorShape({static_cast<int64_t>(table_names_.size())}),
                absl::InvalidArgumentError("num_rows: expected one for each table"));
    const int64_t* rows = num_rows->flat<int64_t>().data();
    int64_t first_feature = 0;
    for (int b = 0; b < batches.size(); ++b) {
      OP_REQUIRES_OK(context, Check(context, b, batches[b], sizes[b], first_feature, rows));
      first_feature += num_features_[b];
    }
    for (int b = 0; b < sizes.size(); ++b) context->set_output(b, sizes[b]);
  }

 private:
  // The features of batch b begin at `first_feature` in the attributes.
  absl::Status Check(OpKernelContext* context, int b, const Tensor& buffer, const Tensor& sizes,
                     int64_t first_feature, const int64_t* num_rows) const {
    const int64_t num_features = num_features_[b];
    const auto names = feature_names_.begin() + first_feature;
    const std::vector<std::string> feature_names(names, names + num_features);
    BatchInput batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, buffer, sizes, num_features, weighted_[b],
                                 BatchCheck::kRowSplits, &feature_names, &batch));
    std::vector<Feature> features;
    for (int64_t f = 0; f < num_features; ++f) {
      features.push_back({batch.extents.first_samples[f], batch.extents.num_samples(f), nullptr, 0,
                          table_of_feature_[first_feature + f], combiners_[first_feature + f]});
    }
    const Fault fault = CheckIds(batch.view, features.data(), num_features, num_rows,
                                 prune_negative_, ThreadsOf(context));
    if (fault.kind == FaultKind::kNone) return absl::OkStatus();
    const int32_t table = features[fault.feature].table;
    return absl::InvalidArgumentError(
        Describe(fault, feature_names[fault.feature], table_names_[table], num_rows[table]));
  }

  std::vector<int32_t> num_features_, table_of_feature_;
  std::vector<Combiner> combiners_;
  std::vector<std::string> table_names_, feature_names_;
  std::vector<bool> weighted_;
  bool prune_negative_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>CheckIds").Device(tensorflow::DEVICE_CPU),
                        Guarded<CheckIdsOp>);

}  // namespace
}  // namespace group_embedding
