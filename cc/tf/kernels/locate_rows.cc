#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "grouping/group_ids.h"
#include "table/device/device_table.h"
#include "table/host/host_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/batch_input.h"
#include "tf/support/device.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/guarded_op.h"
#include "tf/support/located_batch.h"
#include "tf/support/resource_locks.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

using Leases = std::vector<std::unique_ptr<BatchLease>>;

// The keys of one feature.
struct Request {
  const BatchLease* lease;
  const int64_t* keys;
  int64_t num_keys;
  int64_t* rows;
  const int64_t* times;  // how often each came; null: once
  int64_t first_id;      // of the batch
  int64_t* reads;        // as of KeysToLocate
};

// What both devices do before and after the core's function.
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
    Leases leases;
    for (const EmbeddingTablePtr& resource : resources) {
      OP_REQUIRES_OK(context, resource->CheckInitialized());
      OP_REQUIRES_OK(context, CheckReachable(context, *resource->table()));
      leases.push_back(std::make_unique<BatchLease>(resource->table()));
    }
    const Tensor *batch, *sizes, *steps, *times;
    OP_REQUIRES_OK(context, context->input("batch", &batch));
    OP_REQUIRES_OK(context, context->input("sizes", &sizes));
    OP_REQUIRES_OK(context, context->input("steps", &steps));
    OP_REQUIRES_OK(context, context->input("times", &times));
    OP_REQUIRES(context, steps->shape() == TensorShape({static_cast<int64_t>(leases.size())}),
                absl::InvalidArgumentError("steps: expected one per table"));
    Tensor located;
    OP_REQUIRES_OK(context, Copy(context, &located));
    Requests requests;
    OP_REQUIRES_OK(context,
                   MakeRequests(context, *sizes, *steps, *times, leases, &located, &requests));
    Tensor reads;
    OP_REQUIRES_OK(context, AddReads(context, *sizes, located, &requests, &reads));
    OP_REQUIRES_OK(context, CatchErrors([&] { return LocateAll(context, requests); }));
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(
        new LocatedBuffer(located, std::move(leases), training_, std::move(reads)));
    context->set_output(0, Tensor(batch->dtype(), batch->shape(), std::move(buffer)));
  }

 protected:
  virtual absl::Status Locate(OpKernelContext* context, const std::vector<Request>& requests,
                              Access access, int64_t step) = 0;
  virtual absl::Status CopyWords(OpKernelContext* context, const float* from, int64_t count,
                                 float* to) = 0;

 private:
  struct Requests {
    std::vector<Request> read;
    std::map<int64_t, std::vector<Request>> train;  // by step
  };

  // The batch itself, if nobody else has it.
  absl::Status Copy(OpKernelContext* context, Tensor* located) {
    int at, end;
    TF_RETURN_IF_ERROR(InputRange("batch", &at, &end));
    const Tensor& batch = context->input(at);
    const void* data = batch.data();
    TF_RETURN_IF_ERROR(context->forward_input_or_allocate_temp(
        {at}, batch.dtype(), batch.shape(), tensorflow::AllocatorAttributes(), located));
    if (located->data() == data) return absl::OkStatus();
    return CopyWords(context, batch.flat<float>().data(), batch.NumElements(),
                     located->flat<float>().data());
  }

  // On a GPU its threads bound them.
  static absl::Status CheckTimes(OpKernelContext* context, const Tensor& times) {
    if (context->op_device_context() != nullptr) return absl::OkStatus();
    const auto values = times.flat<int64_t>();
    for (int64_t i = 0; i < values.size(); ++i) {
      if (values(i) >= 1 && values(i) <= kMaxTimes) continue;
      return absl::InvalidArgumentError(
          "times: expected 1 <= times <= " + std::to_string(kMaxTimes) + ", got " +
          std::to_string(values(i)) + " at position " + std::to_string(i));
    }
    return absl::OkStatus();
  }

  // One for each feature of a keyed table.
  absl::Status MakeRequests(OpKernelContext* context, const Tensor& sizes, const Tensor& steps,
                            const Tensor& times, const Leases& leases, Tensor* located,
                            Requests* requests) const {
    const int64_t num_features = static_cast<int64_t>(table_of_feature_.size());
    BatchInput batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, *located, sizes, num_features, weighted_,
                                 BatchCheck::kSizes, nullptr, &batch));
    const bool has_times = times.NumElements() > 0;
    if (has_times && times.NumElements() != batch.extents.num_ids()) {
      return absl::InvalidArgumentError("times: expected one per id, or none");
    }
    TF_RETURN_IF_ERROR(CheckTimes(context, times));
    const int64_t* first_times = has_times ? times.flat<int64_t>().data() : nullptr;
    int64_t* ids = const_cast<int64_t*>(batch.view.ids);  // of `located`
    for (int64_t f = 0; f < num_features; ++f) {
      const int32_t table = table_of_feature_[f];
      if (table < 0) continue;
      const int64_t begin = batch.extents.first_ids[f];
      auto& list = training_ && learning_[table] ? requests->train[steps.vec<int64_t>()(table)]
                                                 : requests->read;
      list.push_back({leases[table].get(), ids + begin, batch.extents.num_ids(f), ids + begin,
                      has_times ? first_times + begin : nullptr, begin, nullptr});
    }
    return absl::OkStatus();
  }

  // Where a filter may admit keys, has requests write what is read apart from what is trained.
  absl::Status AddReads(OpKernelContext* context, const Tensor& sizes, const Tensor& located,
                        Requests* requests, Tensor* reads) {
    bool has_filter = false;
    for (const auto& [step, list] : requests->train) {
      for (const Request& request : list)
        has_filter |= HasFilter(request.lease->table()->options());
    }
    if (!has_filter) return absl::OkStatus();
    int64_t num_samples = 0, num_ids = 0;
    for (int64_t f = 0; f < sizes.dim_size(0); ++f) {
      num_samples += sizes.matrix<int64_t>()(f, 0);
      num_ids += sizes.matrix<int64_t>()(f, 1);
    }
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT64, TensorShape({num_ids}), reads));
    int64_t* to = reads->flat<int64_t>().data();
    const float* ids =
        located.flat<float>().data() + LayOutBatch(num_samples, num_ids, weighted_).ids;
    TF_RETURN_IF_ERROR(CopyWords(context, ids, 2 * num_ids, reinterpret_cast<float*>(to)));
    for (Request& request : requests->read) request.reads = to + request.first_id;
    for (auto& [step, list] : requests->train) {
      for (Request& request : list) request.reads = to + request.first_id;
    }
    return absl::OkStatus();
  }

  absl::Status LocateAll(OpKernelContext* context, const Requests& requests) {
    for (const auto& [step, list] : requests.train) {
      TF_RETURN_IF_ERROR(Locate(context, list, Access::kTrain, step));
    }
    if (requests.read.empty()) return absl::OkStatus();
    return Locate(context, requests.read, Access::kRead, -1);
  }

  std::vector<int32_t> table_of_feature_;
  std::vector<bool> learning_;
  bool weighted_, training_;
};

class LocateRowsCpuOp : public LocateRowsOp {
  using LocateRowsOp::LocateRowsOp;

  absl::Status Locate(OpKernelContext* context, const std::vector<Request>& requests, Access access,
                      int64_t step) override {
    std::vector<KeysToLocate> list;
    for (const Request& r : requests) {
      list.push_back({r.lease->table()->host(), r.keys, r.num_keys, r.rows, r.lease->batch(),
                      r.times, r.reads});
    }
    return ToStatus(LocateRowsCpu(list.data(), static_cast<int64_t>(list.size()), access, step,
                                  ThreadsOf(context)));
  }

  absl::Status CopyWords(OpKernelContext*, const float* from, int64_t count, float* to) override {
    std::copy_n(from, count, to);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>LocateRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<LocateRowsCpuOp>);

#if GOOGLE_CUDA
class LocateRowsGpuOp : public LocateRowsOp {
  using LocateRowsOp::LocateRowsOp;

  absl::Status Locate(OpKernelContext* context, const std::vector<Request>& requests, Access access,
                      int64_t step) override {
    std::vector<DeviceKeysToLocate> list;
    for (const Request& r : requests) {
      list.push_back({r.lease->table()->device(), r.keys, r.num_keys, r.rows, r.times, r.reads,
                      r.lease->batch()});
    }
    const int64_t num_requests = static_cast<int64_t>(list.size());
    Tensor scratch;
    TF_RETURN_IF_ERROR(AllocateScratch(
        context, LocateRowsScratchBytes(list.data(), num_requests, access), &scratch));
    return ToStatus(
        LocateRowsCuda(list.data(), num_requests, access, step, scratch.data(), StreamOf(context)));
  }

  absl::Status CopyWords(OpKernelContext* context, const float* from, int64_t count,
                         float* to) override {
    return ToStatus(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToDevice,
                                    StreamOf(context)),
                    "copying a batch");
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>LocateRows")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("sizes")
                            .HostMemory("steps"),
                        Guarded<LocateRowsGpuOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
