#include "exchange/host/route_ids.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/words.h"
#include "exchange/host/route_sums.h"
#include "grouping/group_ids.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/batch_input.h"
#include "tf/support/device.h"
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

// How many ranks there may be: far more than there are, and few enough to count for each.
constexpr int64_t kMaxRanks = int64_t{1} << 16;

absl::Status GetNumRanks(OpKernelConstruction* context, int64_t* num_ranks) {
  TF_RETURN_IF_ERROR(context->GetAttr("num_ranks", num_ranks));
  if (*num_ranks >= 1 && *num_ranks <= kMaxRanks) return absl::OkStatus();
  return absl::InvalidArgumentError("num_ranks: expected 1 to " + std::to_string(kMaxRanks) +
                                    ", got " + std::to_string(*num_ranks));
}

class RouteIdsOp : public OpKernel {
 public:
  explicit RouteIdsOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string invalid;
    OP_REQUIRES_OK(context, GetNumRanks(context, &num_ranks_));
    OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES_OK(context, ReadCombiners(context, &combiners_));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(context, context->GetAttr("prune_negative", &invalid_ids_.prune_negative));
    OP_REQUIRES_OK(context, context->GetAttr("invalid_ids", &invalid));
    OP_REQUIRES_OK(context, ReadTables(context));
    OP_REQUIRES_OK(context, ReadProxies(context));
    invalid_ids_.read_zeros = invalid == "ignore";
    OP_REQUIRES(context, combiners_.size() == table_of_feature_.size(),
                absl::InvalidArgumentError("combiners: expected one per feature"));
    for (const int32_t table : table_of_feature_) {
      OP_REQUIRES(context, table >= 0 && table < static_cast<int32_t>(tables_.size()),
                  absl::InvalidArgumentError("table_of_feature: expected indices into num_rows"));
    }
  }

  void Compute(OpKernelContext* context) override {
    std::vector<Feature> features;
    RouteInput input;
    OP_REQUIRES_OK(context, Read(context, &features, &input));
    OfHost of_host;
    OP_REQUIRES_OK(context, ReadOfHost(context, input.batch.num_ids, &of_host));
    input.times = of_host.times;
    Fault fault;
    std::vector<TableRequest> requests;
    if (description_.sums.empty()) {
      OP_REQUIRES_OK(context, Route(context, input, &requests, &fault));
    } else {
      OP_REQUIRES_OK(context, RouteWithSums(context, input, &requests, &fault));
    }
    if (of_host.fault.kind != FaultKind::kNone) fault = of_host.fault;
    const int64_t num_asked = proxies_.of.empty() ? num_ranks_ : proxies_.num_ranks;
    const Messages messages = WriteMessages(
        requests, fault, description_,
        /*with_description=*/!description_is_told_.exchange(true), num_asked, of_host.fault_rank);
    const int64_t num_words = static_cast<int64_t>(messages.words.size());
    OP_REQUIRES(context, num_words <= std::numeric_limits<int32_t>::max(),
                absl::InvalidArgumentError("expected fewer than 2^31 unique rows in one batch"));
    OP_REQUIRES_OK(context,
                   OutputVector<int64_t>(context, 0, messages.words, TensorShape({num_words})));
    OP_REQUIRES_OK(context,
                   OutputVector<int32_t>(context, 1, messages.splits, TensorShape({num_asked})));
    OP_REQUIRES_OK(context, OutputVector<int64_t>(context, 2, messages.counts,
                                                  TensorShape({num_asked, input.num_tables})));
  }

 private:
  // What the ranks of this host, whose requests the batch has, said beside them.
  struct OfHost {
    const int64_t* times = nullptr;  // of each id; null: 1
    Fault fault;
    int64_t fault_rank = -1;
  };

  static absl::Status ReadOfHost(OpKernelContext* context, int64_t num_ids, OfHost* of_host) {
    if (context->num_inputs() == 2) return absl::OkStatus();
    const Tensor &times = context->input(2), &fault = context->input(3);
    if (times.NumElements() > 0) {
      of_host->times = times.flat<int64_t>().data();
      const bool are_counts =
          std::all_of(of_host->times, of_host->times + times.NumElements(),
                      [](int64_t count) { return count >= 1 && count <= kMaxTimes; });
      if (times.NumElements() != num_ids || !are_counts) {
        return absl::InvalidArgumentError("of_host: expected how often each of " +
                                          std::to_string(num_ids) + " ids came, or nothing");
      }
    }
    if (fault.NumElements() == 0) return absl::OkStatus();
    if (fault.NumElements() != 5) {
      return absl::InvalidArgumentError("of_host: expected the 5 words of a fault, or none");
    }
    const auto words = fault.flat<int64_t>();
    if (!IsFaultKind(words(0))) {
      return absl::InvalidArgumentError("of_host: expected a kind of fault, got " +
                                        std::to_string(words(0)));
    }
    of_host->fault = {static_cast<FaultKind>(words(0)), static_cast<int32_t>(words(1)), words(2),
                      words(3)};
    of_host->fault_rank = words(4);
    return absl::OkStatus();
  }

  absl::Status ReadProxies(OpKernelConstruction* context) {
    int num_of_host;
    TF_RETURN_IF_ERROR(context->GetAttr("num_of_host", &num_of_host));
    TF_RETURN_IF_ERROR(context->GetAttr("proxies", &proxies_.of));
    TF_RETURN_IF_ERROR(context->GetAttr("ranks_of_host", &proxies_.num_ranks));
    if (num_of_host != 0 && num_of_host != 2) {
      return absl::InvalidArgumentError("of_host: expected nothing, or times and a fault");
    }
    if (proxies_.of.empty()) return absl::OkStatus();
    const bool are_of_host =
        std::all_of(proxies_.of.begin(), proxies_.of.end(),
                    [this](int64_t proxy) { return proxy >= 0 && proxy < proxies_.num_ranks; });
    if (!are_of_host || static_cast<int64_t>(proxies_.of.size()) != num_ranks_) {
      return absl::InvalidArgumentError(
          "proxies: expected one of " + std::to_string(proxies_.num_ranks) +
          " ranks of a host for each of " + std::to_string(num_ranks_) + " ranks");
    }
    for (const RoutedTable& table : tables_) {
      if (!table.sums && table.placement.kind != PlacementKind::kColumns) continue;
      return absl::InvalidArgumentError("proxies: expected tables whose owners send rows");
    }
    return absl::OkStatus();
  }

  // Outputs the batch in terms of rows alone: it differs in its ids.
  absl::Status Route(OpKernelContext* context, const RouteInput& input,
                     std::vector<TableRequest>* requests, Fault* fault) const {
    const Tensor& batch = context->input(0);
    Tensor* routed;
    TF_RETURN_IF_ERROR(context->allocate_output(3, batch.shape(), &routed));
    float* buffer = routed->flat<float>().data();
    std::copy_n(batch.flat<float>().data(), batch.NumElements(), buffer);
    const BatchLayout at = LayOutBatch(input.batch.num_samples, input.batch.num_ids, weighted_);
    std::vector<SampleSums> sums;
    *requests = RouteIds(input, reinterpret_cast<int64_t*>(buffer + at.ids), &sums, fault,
                         ThreadsOf(context));
    context->set_output(4, context->input(1));
    return absl::OkStatus();
  }

  // Outputs a batch with other numbers of ids, as sums stand for several.
  absl::Status RouteWithSums(OpKernelContext* context, const RouteInput& input,
                             std::vector<TableRequest>* requests, Fault* fault) const {
    std::vector<int64_t> ids(input.batch.num_ids), num_ids(input.num_features);
    std::vector<SampleSums> sums;
    *requests = RouteIds(input, ids.data(), &sums, fault, ThreadsOf(context));
    CountRoutedIds(input, sums, num_ids.data());
    std::vector<int64_t> sizes;
    int64_t total_ids = 0;
    for (int64_t f = 0; f < input.num_features; ++f) {
      sizes.insert(sizes.end(), {input.features[f].num_samples, num_ids[f]});
      total_ids += num_ids[f];
    }
    Tensor* routed;
    const BatchLayout at = LayOutBatch(input.batch.num_samples, total_ids, weighted_);
    TF_RETURN_IF_ERROR(context->allocate_output(3, TensorShape({at.size}), &routed));
    WriteRoutedBatch(input, ids.data(), sums, num_ids.data(), routed->flat<float>().data());
    return OutputVector<int64_t>(context, 4, sizes, TensorShape({input.num_features, 2}));
  }

  absl::Status ReadTables(OpKernelConstruction* context) {
    std::vector<int64_t> num_rows;
    std::vector<int32_t> placement_ranks;
    std::vector<std::string> placements;
    TF_RETURN_IF_ERROR(context->GetAttr("num_rows", &num_rows));
    TF_RETURN_IF_ERROR(context->GetAttr("placements", &placements));
    TF_RETURN_IF_ERROR(context->GetAttr("placement_ranks", &placement_ranks));
    TF_RETURN_IF_ERROR(context->GetAttr("description", &description_.text));
    if (placements.size() != num_rows.size() || placement_ranks.size() != num_rows.size()) {
      return absl::InvalidArgumentError("placements, placement_ranks: expected one per table");
    }
    for (size_t t = 0; t < num_rows.size(); ++t) {
      if (placement_ranks[t] < 0 || placement_ranks[t] >= num_ranks_) {
        return absl::InvalidArgumentError("placement_ranks: expected ranks");
      }
      const std::optional<PlacementKind> kind = Parse(PlacementWords(), placements[t]);
      if (!kind) {
        return absl::InvalidArgumentError(
            UnknownWord("placements", PlacementWords(), placements[t]));
      }
      const bool is_for_rows = *kind == PlacementKind::kMod || *kind == PlacementKind::kColumns;
      if (is_for_rows && num_rows[t] == kAnyKey) {
        return absl::InvalidArgumentError("placements: expected 'hash' or 'one_rank' for keys");
      }
      // The largest number of rows for which Owners finds the owner of a row.
      if (num_rows[t] != kAnyKey &&
          (num_rows[t] < 0 || num_rows[t] > std::numeric_limits<int64_t>::max() / num_ranks_)) {
        return absl::InvalidArgumentError("num_rows: expected those of a table over " +
                                          std::to_string(num_ranks_) + " ranks, or -1, got " +
                                          std::to_string(num_rows[t]));
      }
      tables_.push_back({num_rows[t], {*kind, placement_ranks[t]}});
      description_.keyed.push_back(num_rows[t] == kAnyKey);
    }
    TF_RETURN_IF_ERROR(GetTablesWithSums(context, tables_.size(), &description_.sums));
    for (size_t t = 0; t < description_.sums.size(); ++t) tables_[t].sums = description_.sums[t];
    return absl::OkStatus();
  }

  absl::Status Read(OpKernelContext* context, std::vector<Feature>* features,
                    RouteInput* input) const {
    const int64_t num_features = static_cast<int64_t>(table_of_feature_.size());
    BatchInput batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, context->input(0), context->input(1), num_features,
                                 weighted_, BatchCheck::kRowSplits, nullptr, &batch));
    const BatchExtents& extents = batch.extents;
    if (extents.num_ids() > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError("expected fewer than 2^31 ids in one batch, got " +
                                        std::to_string(extents.num_ids()) +
                                        "; use smaller batches");
    }
    for (int64_t f = 0; f < num_features; ++f) {
      features->push_back({extents.first_samples[f], extents.num_samples(f), nullptr, 0,
                           table_of_feature_[f], combiners_[f]});
    }
    *input = {tables_.data(),   static_cast<int64_t>(tables_.size()),
              features->data(), num_features,
              batch.view,       invalid_ids_,
              num_ranks_,       proxies_};
    return absl::OkStatus();
  }

  int64_t num_ranks_;
  Proxies proxies_;
  std::vector<RoutedTable> tables_;
  Description description_;
  std::atomic<bool> description_is_told_{false};
  std::vector<int32_t> table_of_feature_;
  std::vector<Combiner> combiners_;
  bool weighted_;
  InvalidIds invalid_ids_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>RouteIds").Device(tensorflow::DEVICE_CPU),
                        Guarded<RouteIdsOp>);

class KeyOwnersOp : public OpKernel {
 public:
  explicit KeyOwnersOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetNumRanks(context, &num_ranks_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& keys = context->input(0);
    Tensor* owners;
    OP_REQUIRES_OK(context, context->allocate_output(0, keys.shape(), &owners));
    const auto from = keys.flat<int64_t>();
    std::transform(from.data(), from.data() + from.size(), owners->flat<int64_t>().data(),
                   [this](int64_t key) { return OwnerOfKey(key, num_ranks_); });
  }

 private:
  int64_t num_ranks_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>KeyOwners").Device(tensorflow::DEVICE_CPU),
                        Guarded<KeyOwnersOp>);

}  // namespace
}  // namespace group_embedding
