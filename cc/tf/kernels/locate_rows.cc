#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "grouping/group_ids.h"
#include "table/host_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/kernels/device.h"
#include "tf/kernels/embedding_table_resource.h"
#include "tf/kernels/located_batch.h"
#include "tf/kernels/resource_locks.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class LocateRowsOp : public OpKernel {
 public:
  explicit LocateRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_tables;
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables));
    OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES_OK(context, context->GetAttr("learning", &learning_));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(context, context->GetAttr("training", &training_));
    OP_REQUIRES(context, static_cast<int>(learning_.size()) == num_tables,
                absl::InvalidArgumentError("learning: expected one per table"));
    for (const int32_t table : table_of_feature_) {
      OP_REQUIRES(context, table >= -1 && table < num_tables,
                  absl::InvalidArgumentError("table_of_feature: expected indices into tables"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("locating");
    std::vector<EmbeddingTablePtr> resources(learning_.size());
    std::vector<tensorflow::mutex*> mutexes;
    for (size_t t = 0; t < resources.size(); ++t) {
      OP_REQUIRES_OK(context, FindEmbeddingTable(context, static_cast<int>(t), &resources[t]));
      mutexes.push_back(resources[t]->mu());
    }
    SharedLocks locks;
    locks.Lock(std::move(mutexes));
    std::vector<std::unique_ptr<BatchLease>> leases;
    for (const EmbeddingTablePtr& resource : resources) {
      OP_REQUIRES_OK(context, resource->CheckInitialized());
      leases.push_back(std::make_unique<BatchLease>(resource->table()));
    }
    const Tensor *batch, *sizes, *steps;
    OP_REQUIRES_OK(context, context->input("batch", &batch));
    OP_REQUIRES_OK(context, context->input("sizes", &sizes));
    OP_REQUIRES_OK(context, context->input("steps", &steps));
    OP_REQUIRES(context, steps->shape() == TensorShape({static_cast<int64_t>(leases.size())}),
                absl::InvalidArgumentError("steps: expected one per table"));
    Tensor located;
    OP_REQUIRES_OK(context, context->allocate_temp(batch->dtype(), batch->shape(), &located));
    std::copy_n(batch->flat<float>().data(), batch->NumElements(), located.flat<float>().data());
    Requests requests;
    OP_REQUIRES_OK(context, MakeRequests(*batch, *sizes, *steps, leases, &located, &requests));
    OP_REQUIRES_OK(context, Locate(context, requests));
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(
        new LocatedBuffer(located, std::move(leases), training_));
    context->set_output(0, Tensor(batch->dtype(), batch->shape(), std::move(buffer)));
  }

 private:
  struct Requests {
    std::vector<KeysToLocate> read;
    std::map<int64_t, std::vector<KeysToLocate>> train;  // by step
  };

  // One for each feature of a keyed table.
  absl::Status MakeRequests(const Tensor& batch, const Tensor& sizes, const Tensor& steps,
                            const std::vector<std::unique_ptr<BatchLease>>& leases, Tensor* located,
                            Requests* requests) const {
    const int64_t num_features = static_cast<int64_t>(table_of_feature_.size());
    if (sizes.shape() != TensorShape({num_features, 2})) {
      return absl::InvalidArgumentError("sizes: expected shape [" + std::to_string(num_features) +
                                        ", 2], got " + sizes.shape().DebugString());
    }
    const auto size = sizes.matrix<int64_t>();
    int64_t num_samples = 0, num_ids = 0;
    for (int64_t f = 0; f < num_features; ++f) {
      num_samples += size(f, 0);
      num_ids += size(f, 1);
    }
    const BatchLayout at = LayOutBatch(num_samples, num_ids, weighted_);
    if (batch.NumElements() != at.size) {
      return absl::InvalidArgumentError("batch: its length does not match `sizes`");
    }
    const int64_t* keys = reinterpret_cast<const int64_t*>(batch.flat<float>().data() + at.ids);
    int64_t* rows = reinterpret_cast<int64_t*>(located->flat<float>().data() + at.ids);
    int64_t begin = 0;
    for (int64_t f = 0; f < num_features; begin += size(f++, 1)) {
      const int32_t table = table_of_feature_[f];
      if (table < 0) continue;
      auto& list = training_ && learning_[table] ? requests->train[steps.vec<int64_t>()(table)]
                                                 : requests->read;
      list.push_back({leases[table]->table(), keys + begin, size(f, 1), rows + begin});
    }
    return absl::OkStatus();
  }

  static absl::Status Locate(OpKernelContext* context, const Requests& requests) {
    auto locate = [&](const std::vector<KeysToLocate>& list, Access access, int64_t step) {
      return ToStatus(LocateRowsCpu(list.data(), static_cast<int64_t>(list.size()), access, step,
                                    ThreadsOf(context)));
    };
    for (const auto& [step, list] : requests.train) {
      TF_RETURN_IF_ERROR(locate(list, Access::kTrain, step));
    }
    return requests.read.empty() ? absl::OkStatus() : locate(requests.read, Access::kRead, -1);
  }

  std::vector<int32_t> table_of_feature_;
  std::vector<bool> learning_;
  bool weighted_, training_;
};

REGISTER_KERNEL_BUILDER(Name("LocateRows").Device(tensorflow::DEVICE_CPU), LocateRowsOp);

}  // namespace
}  // namespace group_embedding
