#include "exchange/route_ids.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "grouping/group_ids.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/kernels/device.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

template <typename To>
absl::Status OutputVector(OpKernelContext* context, int index, const std::vector<int64_t>& values,
                          const TensorShape& shape) {
  Tensor* output;
  TF_RETURN_IF_ERROR(context->allocate_output(index, shape, &output));
  std::transform(values.begin(), values.end(), output->flat<To>().data(),
                 [](int64_t value) { return static_cast<To>(value); });
  return absl::OkStatus();
}

class RouteIdsOp : public OpKernel {
 public:
  explicit RouteIdsOp(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<std::string> combiners;
    std::string invalid;
    OP_REQUIRES_OK(context, context->GetAttr("num_ranks", &num_ranks_));
    OP_REQUIRES_OK(context, context->GetAttr("num_rows", &num_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES_OK(context, context->GetAttr("combiners", &combiners));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(context, context->GetAttr("prune_negative", &invalid_ids_.prune_negative));
    OP_REQUIRES_OK(context, context->GetAttr("invalid_ids", &invalid));
    invalid_ids_.read_zeros = invalid == "ignore";
    OP_REQUIRES(context, combiners.size() == table_of_feature_.size(),
                absl::InvalidArgumentError("combiners: expected one per feature"));
    for (const std::string& word : combiners) {
      combiners_.push_back(word == "sum"    ? Combiner::kSum
                           : word == "mean" ? Combiner::kMean
                                            : Combiner::kSqrtN);
    }
    for (const int32_t table : table_of_feature_) {
      OP_REQUIRES(context, table >= 0 && table < static_cast<int32_t>(num_rows_.size()),
                  absl::InvalidArgumentError("table_of_feature: expected indices into num_rows"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& batch = context->input(0);
    std::vector<Feature> features;
    RouteInput input;
    OP_REQUIRES_OK(context, Read(batch, context->input(1), &features, &input));
    Tensor* routed;
    OP_REQUIRES_OK(context, context->allocate_output(3, batch.shape(), &routed));
    // Row splits and weights stay as they are.
    std::copy_n(batch.flat<float>().data(), batch.NumElements(), routed->flat<float>().data());
    const BatchLayout at = LayOutBatch(input.batch.num_samples, input.batch.num_ids, weighted_);
    Route route;
    RouteIds(input, &route, reinterpret_cast<int64_t*>(routed->flat<float>().data() + at.ids),
             ThreadsOf(context));
    const int64_t num_words = static_cast<int64_t>(route.messages.size());
    OP_REQUIRES(context, num_words <= std::numeric_limits<int32_t>::max(),
                absl::InvalidArgumentError("expected fewer than 2^31 unique rows in one batch"));
    OP_REQUIRES_OK(context,
                   OutputVector<int64_t>(context, 0, route.messages, TensorShape({num_words})));
    OP_REQUIRES_OK(context,
                   OutputVector<int32_t>(context, 1, route.splits, TensorShape({num_ranks_})));
    OP_REQUIRES_OK(context, OutputVector<int64_t>(context, 2, route.counts,
                                                  TensorShape({num_ranks_, input.num_tables})));
  }

 private:
  absl::Status Read(const Tensor& batch, const Tensor& sizes, std::vector<Feature>* features,
                    RouteInput* input) const {
    const int64_t num_features = static_cast<int64_t>(table_of_feature_.size());
    if (sizes.dims() != 2 || sizes.dim_size(0) != num_features || sizes.dim_size(1) != 2) {
      return absl::InvalidArgumentError("sizes: expected shape [" + std::to_string(num_features) +
                                        ", 2], got " + sizes.shape().DebugString());
    }
    int64_t num_samples = 0, num_ids = 0;
    for (int64_t f = 0; f < num_features; ++f) {
      const int64_t samples = sizes.matrix<int64_t>()(f, 0);
      features->push_back({num_samples, samples, nullptr, 0, table_of_feature_[f], combiners_[f]});
      num_samples += samples;
      num_ids += sizes.matrix<int64_t>()(f, 1);
    }
    if (batch.NumElements() != LayOutBatch(num_samples, num_ids, weighted_).size) {
      return absl::InvalidArgumentError("batch: its length does not match `sizes`");
    }
    *input = {num_rows_.data(),
              static_cast<int64_t>(num_rows_.size()),
              features->data(),
              num_features,
              ViewBatch(batch.flat<float>().data(), num_samples, num_ids, weighted_),
              invalid_ids_,
              num_ranks_};
    return absl::OkStatus();
  }

  int64_t num_ranks_;
  std::vector<int64_t> num_rows_;
  std::vector<int32_t> table_of_feature_;
  std::vector<Combiner> combiners_;
  bool weighted_;
  InvalidIds invalid_ids_;
};

REGISTER_KERNEL_BUILDER(Name("RouteIds").Device(tensorflow::DEVICE_CPU), RouteIdsOp);

class ReadRequestsOp : public OpKernel {
 public:
  explicit ReadRequestsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_rows", &num_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES_OK(context, context->GetAttr("table_names", &table_names_));
    OP_REQUIRES_OK(context, context->GetAttr("feature_names", &feature_names_));
    OP_REQUIRES(context,
                feature_names_.size() == table_of_feature_.size() &&
                    table_names_.size() == num_rows_.size(),
                absl::InvalidArgumentError(
                    "expected attributes of one length per feature and one per table"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    const Tensor& splits = context->input(1);
    const auto int32_splits = splits.flat<int32_t>();
    const std::vector<int64_t> words(int32_splits.data(),
                                     int32_splits.data() + int32_splits.size());
    const int64_t num_ranks = static_cast<int64_t>(words.size());
    const int64_t num_tables = static_cast<int64_t>(num_rows_.size());
    int64_t total = 0;
    for (const int64_t count : words) total += count;
    Requests requests;
    requests.valid = false;
    if (total == messages.NumElements()) {
      requests = ReadMessages(messages.flat<int64_t>().data(), words.data(), num_ranks, num_tables);
    }
    OP_REQUIRES(context, requests.valid,
                absl::InvalidArgumentError(
                    "the ranks disagree on the tables of a lookup: expected messages about " +
                    std::to_string(num_tables) +
                    " tables from each rank; run the same model on all ranks"));
    OP_REQUIRES_OK(context, ToStatus(requests));
    OP_REQUIRES_OK(context, OutputBatch(context, requests));
    OP_REQUIRES_OK(context, OutputVector<int64_t>(context, 2, requests.counts,
                                                  TensorShape({num_ranks, num_tables})));
  }

 private:
  absl::Status ToStatus(const Requests& requests) const {
    const Fault& fault = requests.fault;
    if (fault.kind == FaultKind::kNone) return absl::OkStatus();
    const std::string rank = "rank " + std::to_string(requests.fault_rank) + ": ";
    if (fault.feature < 0 || fault.feature >= static_cast<int32_t>(feature_names_.size())) {
      return absl::InvalidArgumentError(rank + "bad input of a feature unknown to this rank");
    }
    const int32_t table = table_of_feature_[fault.feature];
    return absl::InvalidArgumentError(rank + Describe(fault, feature_names_[fault.feature],
                                                      table_names_[table], num_rows_[table]));
  }

  absl::Status OutputBatch(OpKernelContext* context, const Requests& requests) const {
    const int64_t num_ids = static_cast<int64_t>(requests.ids.size());
    const int64_t num_tables = static_cast<int64_t>(requests.totals.size());
    const BatchLayout at = LayOutBatch(num_ids, num_ids, /*weighted=*/false);
    Tensor *batch, *sizes;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({at.size}), &batch));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_tables, 2}), &sizes));
    auto* row_splits = reinterpret_cast<int64_t*>(batch->flat<float>().data());
    auto* ids = reinterpret_cast<int64_t*>(batch->flat<float>().data() + at.ids);
    for (int64_t i = 0; i <= num_ids; ++i) row_splits[i] = i;
    std::copy(requests.ids.begin(), requests.ids.end(), ids);
    for (int64_t t = 0; t < num_tables; ++t) {
      sizes->matrix<int64_t>()(t, 0) = requests.totals[t];
      sizes->matrix<int64_t>()(t, 1) = requests.totals[t];
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> num_rows_;
  std::vector<int32_t> table_of_feature_;
  std::vector<std::string> table_names_, feature_names_;
};

REGISTER_KERNEL_BUILDER(Name("ReadRequests").Device(tensorflow::DEVICE_CPU), ReadRequestsOp);

}  // namespace
}  // namespace group_embedding
