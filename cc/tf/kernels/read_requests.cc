// What other ranks request of this one, as batches of its tables.
#include <algorithm>
#include <string>
#include <vector>

#include "exchange/host/route_ids.h"
#include "grouping/group_ids.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/batch_input.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/output_vector.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class ReadRequestsOp : public OpKernel {
 public:
  explicit ReadRequestsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_rows", &num_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("num_groups", &num_groups_));
    OP_REQUIRES_OK(context, context->GetAttr("group_of_table", &group_of_table_));
    OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES_OK(context, context->GetAttr("table_names", &table_names_));
    OP_REQUIRES_OK(context, context->GetAttr("feature_names", &feature_names_));
    OP_REQUIRES_OK(context, context->GetAttr("description", &description_.text));
    for (const int64_t num_rows : num_rows_) description_.keyed.push_back(num_rows == kAnyKey);
    OP_REQUIRES_OK(context, GetTablesWithSums(context, num_rows_.size(), &description_.sums));
    OP_REQUIRES_OK(context, context->GetAttr("ranks_of_host", &ranks_of_host_));
    OP_REQUIRES(context,
                feature_names_.size() == table_of_feature_.size() &&
                    table_names_.size() == num_rows_.size() &&
                    group_of_table_.size() == num_rows_.size(),
                absl::InvalidArgumentError(
                    "expected attributes of one length per feature and one per table"));
    const auto expect_indices = [&](const char* name, const std::vector<int32_t>& indices,
                                    int64_t count) {
      for (const int32_t index : indices) {
        OP_REQUIRES(
            context, index >= 0 && index < count,
            absl::InvalidArgumentError(std::string(name) + ": expected 0 <= index < " +
                                       std::to_string(count) + ", got " + std::to_string(index)));
      }
    };
    expect_indices("table_of_feature", table_of_feature_, NumTables());
    expect_indices("group_of_table", group_of_table_, num_groups_);
    for (int64_t t = 0; t < NumTables(); ++t) {
      OP_REQUIRES(context, GroupHasSums(group_of_table_[t]) == HasSums(t),
                  absl::InvalidArgumentError(
                      "group_of_table: expected tables with sums in groups without others"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    const Tensor& splits = context->input(1);
    const auto int32_splits = splits.flat<int32_t>();
    const std::vector<int64_t> words(int32_splits.data(),
                                     int32_splits.data() + int32_splits.size());
    const int64_t num_ranks = static_cast<int64_t>(words.size());
    int64_t total = 0;
    for (const int64_t count : words) {
      OP_REQUIRES(context, count >= 0,
                  absl::InvalidArgumentError("splits: expected numbers of words, got " +
                                             std::to_string(count)));
      total += count;
    }
    OP_REQUIRES(context, splits.dims() == 1 && total == messages.NumElements(),
                absl::InvalidArgumentError("messages: expected as many words as splits says"));
    const bool is_proxy = !ranks_of_host_.empty();
    OP_REQUIRES(context, !is_proxy || num_ranks == static_cast<int64_t>(ranks_of_host_.size()),
                absl::InvalidArgumentError("splits: expected one for each of ranks_of_host"));
    const Requests requests = ReadMessages(messages.flat<int64_t>().data(), words.data(), num_ranks,
                                           description_, ranks_of_host_);
    OP_REQUIRES(context, requests.error.empty(), absl::InvalidArgumentError(requests.error));
    if (!is_proxy) OP_REQUIRES_OK(context, ToStatus(requests));
    for (int group = 0; group < num_groups_; ++group) {
      OP_REQUIRES_OK(context, GroupHasSums(group) ? OutputGroupOfSums(context, requests, group)
                                                  : OutputGroup(context, requests, group));
    }
    OP_REQUIRES_OK(context, OutputVector<int64_t>(context, 3 * num_groups_, requests.counts,
                                                  TensorShape({num_ranks, NumTables()})));
    const std::vector<int64_t> fault = FaultOfHost(requests);
    OP_REQUIRES_OK(context,
                   OutputVector<int64_t>(context, 3 * num_groups_ + 1, fault,
                                         TensorShape({static_cast<int64_t>(fault.size())})));
  }

 private:
  int64_t NumTables() const { return static_cast<int64_t>(num_rows_.size()); }

  bool HasSums(int64_t table) const {
    return !description_.sums.empty() && description_.sums[table];
  }

  bool GroupHasSums(int group) const {
    const auto first = std::find(group_of_table_.begin(), group_of_table_.end(), group);
    return first != group_of_table_.end() && HasSums(first - group_of_table_.begin());
  }

  // The words of a bad id that a rank of this host has; empty: there is none.
  std::vector<int64_t> FaultOfHost(const Requests& requests) const {
    const Fault& fault = requests.fault;
    if (fault.kind == FaultKind::kNone) return {};
    return {static_cast<int64_t>(fault.kind), fault.feature, fault.sample, fault.value,
            requests.fault_rank};
  }

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

  // The lookup of the tables of one group.
  absl::Status OutputGroup(OpKernelContext* context, const Requests& requests, int group) const {
    std::vector<int64_t> ids, times, sizes;
    for (int64_t t = 0; t < NumTables(); ++t) {
      if (group_of_table_[t] != group) continue;
      const int64_t count = static_cast<int64_t>(requests.ids[t].size());
      // Occurrences of ids are not counted, but a group with keys has a number for each request.
      if (description_.keyed[t]) times.resize(ids.size(), 1);
      ids.insert(ids.end(), requests.ids[t].begin(), requests.ids[t].end());
      times.insert(times.end(), requests.times[t].begin(), requests.times[t].end());
      if (!times.empty()) times.resize(ids.size(), 1);
      sizes.insert(sizes.end(), {count, count});
    }
    const int64_t num_ids = static_cast<int64_t>(ids.size());
    const int64_t num_tables = static_cast<int64_t>(sizes.size()) / 2;
    TF_RETURN_IF_ERROR(OutputBatch(context, group, ids));
    TF_RETURN_IF_ERROR(
        OutputVector<int64_t>(context, num_groups_ + group, sizes, TensorShape({num_tables, 2})));
    return OutputVector<int64_t>(context, 2 * num_groups_ + group, times,
                                 TensorShape({times.empty() ? 0 : num_ids}));
  }

  // As OutputGroup, of tables with sums: a sample for each, and weights. An id is there as often as
  // it occurs, so that nothing says how often.
  absl::Status OutputGroupOfSums(OpKernelContext* context, const Requests& requests,
                                 int group) const {
    std::vector<int64_t> row_splits = {0}, ids, sizes;
    std::vector<float> weights;
    for (int64_t t = 0; t < NumTables(); ++t) {
      if (group_of_table_[t] != group) continue;
      const std::vector<int64_t>& lengths = requests.sum_lengths[t];
      for (const int64_t length : lengths) row_splits.push_back(row_splits.back() + length);
      ids.insert(ids.end(), requests.ids[t].begin(), requests.ids[t].end());
      weights.insert(weights.end(), requests.factors[t].begin(), requests.factors[t].end());
      sizes.insert(sizes.end(), {static_cast<int64_t>(lengths.size()),
                                 static_cast<int64_t>(requests.ids[t].size())});
    }
    const BatchLayout at = LayOutBatch(static_cast<int64_t>(row_splits.size()) - 1,
                                       static_cast<int64_t>(ids.size()), /*weighted=*/true);
    Tensor* batch;
    TF_RETURN_IF_ERROR(context->allocate_output(group, TensorShape({at.size}), &batch));
    float* buffer = batch->flat<float>().data();
    std::copy(row_splits.begin(), row_splits.end(), reinterpret_cast<int64_t*>(buffer));
    std::copy(ids.begin(), ids.end(), reinterpret_cast<int64_t*>(buffer + at.ids));
    std::copy(weights.begin(), weights.end(), buffer + at.weights);
    const int64_t num_tables = static_cast<int64_t>(sizes.size()) / 2;
    TF_RETURN_IF_ERROR(
        OutputVector<int64_t>(context, num_groups_ + group, sizes, TensorShape({num_tables, 2})));
    return OutputVector<int64_t>(context, 2 * num_groups_ + group, {}, TensorShape({0}));
  }

  static absl::Status OutputBatch(OpKernelContext* context, int index,
                                  const std::vector<int64_t>& ids) {
    const int64_t num_ids = static_cast<int64_t>(ids.size());
    const BatchLayout at = LayOutBatch(num_ids, num_ids, /*weighted=*/false);
    Tensor* batch;
    TF_RETURN_IF_ERROR(context->allocate_output(index, TensorShape({at.size}), &batch));
    auto* row_splits = reinterpret_cast<int64_t*>(batch->flat<float>().data());
    for (int64_t i = 0; i <= num_ids; ++i) row_splits[i] = i;
    std::copy(ids.begin(), ids.end(),
              reinterpret_cast<int64_t*>(batch->flat<float>().data() + at.ids));
    return absl::OkStatus();
  }

  int num_groups_;
  std::vector<int32_t> group_of_table_;
  std::vector<int64_t> num_rows_;
  std::vector<int32_t> table_of_feature_;
  std::vector<std::string> table_names_, feature_names_;
  std::vector<int64_t> ranks_of_host_;
  Description description_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ReadRequests").Device(tensorflow::DEVICE_CPU),
                        Guarded<ReadRequestsOp>);

}  // namespace
}  // namespace group_embedding
