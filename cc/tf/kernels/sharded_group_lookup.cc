#if GOOGLE_CUDA

#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/device_buffer.h"
#include "core/trace.h"
#include "exchange/host/pending_calls.h"
#include "exchange/transport/peer_buffers.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/locate_requests.h"
#include "tf/support/lookup_state.h"
#include "tf/support/nccl_ranks.h"
#include "tf/support/tables.h"

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
    if (!context->status().ok()) return;  // GroupAttrs has rejected the attributes
    OP_REQUIRES_OK(context, context->GetAttr("num_rows", &num_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("gradient_scale", &gradient_scale_));
    OP_REQUIRES_OK(context, context->GetAttr("description", &description_));
    summary_ = Summary(attrs_.table_names);
    tensorflow::DataType comm_dtype;
    OP_REQUIRES_OK(context, context->GetAttr("comm_dtype", &comm_dtype));
    comm_type_ = ToCore(comm_dtype);
    OP_REQUIRES(context, num_rows_.size() == attrs_.dims.size(),
                absl::InvalidArgumentError("num_rows: expected one per table"));
    OP_REQUIRES_OK(context, context->GetAttr("keyed", &keyed_));
    OP_REQUIRES_OK(context, context->GetAttr("learning", &learning_));
    OP_REQUIRES_OK(context, context->GetAttr("training", &training_));
    OP_REQUIRES(
        context, num_outputs() == attrs_.NumOutputs() + 1,
        absl::InvalidArgumentError("num_outputs: expected " + std::to_string(attrs_.NumOutputs())));
    for (size_t t = 0; t < num_rows_.size(); ++t) {
      const bool is_keyed = std::count(keyed_.begin(), keyed_.end(), static_cast<int32_t>(t)) > 0;
      OP_REQUIRES(context, is_keyed || num_rows_[t] >= 0,
                  absl::InvalidArgumentError("table '" + attrs_.table_names[t] +
                                             "': expected num_rows of at least 0, got " +
                                             std::to_string(num_rows_[t])));
    }
    OP_REQUIRES(context, learning_.size() == keyed_.size(),
                absl::InvalidArgumentError("learning: expected one per keyed table"));
    OP_REQUIRES(context, keyed_.empty() || !attrs_.weighted,
                absl::InvalidArgumentError("weighted: expected none where tables have keys"));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("sharded lookup");
    const PendingScope pending(name(), summary_);
    std::shared_ptr<Communicator> communicator;
    OP_REQUIRES_OK(context, ranks_.Join(context, &communicator));
    Tables locked;
    OP_REQUIRES_OK(context, locked.Read(context, attrs_, keyed_));
    std::vector<Table> tables = locked.get();
    std::vector<Feature> features;
    BatchInput batch;
    OP_REQUIRES_OK(context, attrs_.MakeFeatures(context, BatchCheck::kSizes, &batch, &features));
    OP_REQUIRES_OK(context, CheckSortable(batch.view));
    OP_REQUIRES_OK(context, CheckSteps(context));
    const std::vector<KeyedFeature> keyed_features = KeyedFeaturesOf(keyed_, batch, features);
    OP_REQUIRES_OK(context, CheckShards(keyed_features, &tables));
    OP_REQUIRES_OK(context, attrs_.AllocateOutputs(context, &features));
    std::shared_ptr<LookupState> held;
    bool on_all_ranks = false;
    const absl::Status status = CatchErrors([&] {
      const Group group = MakeGroup(attrs_, tables, features, batch.view);
      held = std::make_shared<LookupState>(context, group, BufferOf(context), communicator,
                                           description_, comm_type_, keyed_features);
      held->gradient_scale = gradient_scale_;
      held->num_rows = num_rows_;
      held->dims = attrs_.dims;
      held->table_of_feature = attrs_.table_of_feature;
      held->extents = batch.extents;
      const absl::Status asked = RequestCounts(tables, batch.extents, held.get());
      on_all_ranks = !asked.ok();
      return on_all_ranks ? asked : LookUp(context, locked, held.get());
    });
    if (!status.ok() && !on_all_ranks) AbortAlone(status, communicator.get());
    OP_REQUIRES_OK(context, status);
    OP_REQUIRES_OK(context, OutputState(context, std::move(held)));
  }

 private:
  static std::string Summary(const std::vector<std::string>& tables) {
    constexpr size_t kMost = 8;
    std::string summary = "a lookup on GPUs of";
    for (size_t t = 0; t < std::min(tables.size(), kMost); ++t) summary += " '" + tables[t] + "'";
    if (tables.size() <= kMost) return summary;
    return summary + " and " + std::to_string(tables.size() - kMost) + " tables more";
  }

  // Checks the number of rows of each shard, and sets num_rows to that of the whole table, or of
  // the numbered keys.
  absl::Status CheckShards(const std::vector<KeyedFeature>& keyed,
                           std::vector<Table>* tables) const {
    for (size_t t = 0; t < tables->size(); ++t) {
      if (std::find(keyed_.begin(), keyed_.end(), static_cast<int32_t>(t)) != keyed_.end()) {
        (*tables)[t].num_rows = NumberedRows(keyed, static_cast<int64_t>(t), ranks_.num_ranks());
        continue;
      }
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

  // An error that it returns is the same on all ranks. tables: with the num_rows of the whole
  // tables.
  absl::Status RequestCounts(const std::vector<Table>& tables, const BatchExtents& batch,
                             LookupState* held) const {
    const ExchangedCounts& counts = held->RequestCounts();
    WarnOfLack(held->communicator()->peer_buffers());
    return ToStatus(counts, attrs_, tables, ranks_.rank(), batch);
  }

  static void WarnOfLack(const PeerBufferPool* peer_buffers) {
    if (peer_buffers == nullptr || peer_buffers->lack().ok()) return;
    static std::once_flag said;
    std::call_once(said, [&] {
      LOG(WARNING) << "rows of tables on GPUs travel by NCCL where batches are large: "
                   << peer_buffers->lack().message();
    });
  }

  // An error that it returns or throws may be this rank's alone.
  absl::Status LookUp(OpKernelContext* context, const Tables& tables, LookupState* held) const {
    int64_t* ids;
    TF_RETURN_IF_ERROR(held->MakeRequests(&ids));
    RequestLocator locator(context, tables, keyed_, StepsOf(context), Trains());
    const auto locate = [&](int64_t* requests, const int64_t* times) {
      return locator.Locate(held->get()->requested(), requests, times);
    };
    try {
      held->get()->LookUpRows(ids, locate, StreamOf(context));
    } catch (const std::runtime_error&) {
      TF_RETURN_IF_ERROR(locator.status());
      throw;
    }
    held->served = held->requests;
    if (!keyed_.empty()) held->requests = locator.Hold(held->requests, training_);
    return absl::OkStatus();
  }

  absl::Status CheckSteps(OpKernelContext* context) const {
    const int64_t num_steps = context->input(context->num_inputs() - 2).NumElements();
    if (num_steps == static_cast<int64_t>(keyed_.size())) return absl::OkStatus();
    return absl::InvalidArgumentError("steps: expected one per keyed table, got " +
                                      std::to_string(num_steps));
  }

  std::vector<int64_t> StepsOf(OpKernelContext* context) const {
    const auto steps = context->input(context->num_inputs() - 2).flat<int64_t>();
    return {steps.data(), steps.data() + steps.size()};
  }

  const Tensor& BufferOf(OpKernelContext* context) const {
    return context->input(static_cast<int>(attrs_.dims.size()));  // after the tables
  }

  std::vector<bool> Trains() const {
    std::vector<bool> trains = learning_;
    if (!training_) trains.assign(trains.size(), false);
    return trains;
  }

  // The variant is in host memory although the output is on the GPU, as with TensorFlow's
  // TensorList.
  static absl::Status OutputState(OpKernelContext* context, std::shared_ptr<LookupState> held) {
    AllocatorAttributes on_host;
    on_host.set_on_host(true);
    Tensor* state;
    TF_RETURN_IF_ERROR(
        context->allocate_output(context->num_outputs() - 1, TensorShape({}), &state, on_host));
    state->scalar<tensorflow::Variant>()() = LookupStateVariant{std::move(held)};
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;
  const NcclRanks ranks_;
  std::vector<int64_t> num_rows_;  // not used for keyed tables
  std::vector<int32_t> keyed_;
  std::vector<bool> learning_;  // per keyed table
  bool training_;
  float gradient_scale_;
  std::string description_;
  std::string summary_;  // names the lookup in warnings and errors
  DataType comm_type_;
};

REGISTER_FOR_ROW_TYPES(Name("GroupEmbedding>ShardedGroupLookup")
                           .Device(tensorflow::DEVICE_GPU)
                           .HostMemory("sizes")
                           .HostMemory("steps")
                           .HostMemory("order"),
                       Guarded<ShardedGroupLookupOp>);

}  // namespace
}  // namespace group_embedding

#endif  // GOOGLE_CUDA
