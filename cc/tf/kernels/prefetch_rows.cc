#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "table/device/device_table.h"
#include "table/host/host_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tf/support/batch_input.h"
#include "tf/support/device.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/guarded_op.h"
#include "tf/support/resource_locks.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// The keys of one feature.
struct NextKeys {
  int32_t table;
  const int64_t* keys;  // of the batch, where the op runs
  int64_t num_keys;
};

// What both devices do before the rows move.
class PrefetchRowsOp : public OpKernel {
 public:
  explicit PrefetchRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables_));
    OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted_));
    for (const int32_t table : table_of_feature_) {
      OP_REQUIRES(context, table >= -1 && table < num_tables_,
                  absl::InvalidArgumentError("table_of_feature: expected indices into tables"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("prefetching");
    std::vector<EmbeddingTablePtr> tables(num_tables_);
    OP_REQUIRES_OK(context, FindEmbeddingTables(context, &tables));
    const Tensor *batch, *sizes;
    OP_REQUIRES_OK(context, context->input("batch", &batch));
    OP_REQUIRES_OK(context, context->input("sizes", &sizes));
    context->set_output(0, *batch);
    const auto num_features = static_cast<int64_t>(table_of_feature_.size());
    BatchInput input;
    OP_REQUIRES_OK(context, ReadBatch(context, *batch, *sizes, num_features, weighted_,
                                      BatchCheck::kSizes, nullptr, &input));
    std::vector<NextKeys> keys;
    for (int64_t f = 0; f < num_features; ++f) {
      const int64_t count = input.extents.num_ids(f);
      if (table_of_feature_[f] < 0 || count == 0) continue;
      keys.push_back({table_of_feature_[f], input.view.ids + input.extents.first_ids[f], count});
    }
    if (keys.empty()) return;
    OP_REQUIRES_OK(context,
                   CatchErrors([&] { return Prefetch(context, std::move(tables), keys, *batch); }));
  }

 protected:
  virtual absl::Status Prefetch(OpKernelContext* context, std::vector<EmbeddingTablePtr> tables,
                                const std::vector<NextKeys>& keys, const Tensor& batch) = 0;

 private:
  int32_t num_tables_;
  std::vector<int32_t> table_of_feature_;
  bool weighted_;
};

absl::Status Check(OpKernelContext* context, const EmbeddingTableResource& resource) {
  TF_RETURN_IF_ERROR(resource.CheckInitialized());
  return CheckReachable(context, *resource.table());
}

// Tables in host memory, from disk: a thread locates keys to read them, which moves their rows to
// memory. While one batch is brought, others are left to the lookup.
class PrefetchRowsCpuOp : public PrefetchRowsOp {
  using PrefetchRowsOp::PrefetchRowsOp;

  // Held by the thread, so that all of it lives until the thread is done.
  struct Work {
    std::vector<EmbeddingTablePtr> tables;
    std::vector<std::shared_ptr<EmbeddingTable>> now;  // what they hold, as of the op
    std::vector<NextKeys> keys;
    Tensor batch;
    std::shared_ptr<std::atomic<bool>> is_busy;
  };

  absl::Status Prefetch(OpKernelContext* context, std::vector<EmbeddingTablePtr> tables,
                        const std::vector<NextKeys>& keys, const Tensor& batch) override {
    std::vector<std::shared_ptr<EmbeddingTable>> now;
    {
      SharedLocks locks;
      locks.Lock(MutexesOf(tables));
      for (const EmbeddingTablePtr& table : tables) {
        TF_RETURN_IF_ERROR(Check(context, *table));
        now.push_back(table->table());
      }
    }
    if (is_busy_->exchange(true)) return absl::OkStatus();
    auto work =
        std::make_shared<Work>(Work{std::move(tables), std::move(now), keys, batch, is_busy_});
    tensorflow::Env::Default()->SchedClosure([work] {
      const auto unused = CatchErrors([&] { return Run(*work); });  // the lookup meets it, too
      work->is_busy->store(false);
    });
    return absl::OkStatus();
  }

  // In pieces: an update of the table waits for one at most.
  static absl::Status Run(const Work& work) {
    constexpr int64_t kAtOnce = 4096;
    std::vector<int64_t> rows(kAtOnce);
    for (const NextKeys& of : work.keys) {
      EmbeddingTableResource* table = work.tables[of.table].get();
      for (int64_t begin = 0; begin < of.num_keys; begin += kAtOnce) {
        const int64_t count = std::min(kAtOnce, of.num_keys - begin);
        const tensorflow::tf_shared_lock lock(*table->mu());
        if (table->table() != work.now[of.table]) break;  // it was initialized anew
        KeysToLocate request{table->table()->host(), of.keys + begin, count, rows.data()};
        request.is_counted = false;
        TF_RETURN_IF_ERROR(ToStatus(LocateRowsCpu(&request, 1, Access::kRead, -1, SerialFor)));
      }
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<std::atomic<bool>> is_busy_ = std::make_shared<std::atomic<bool>>(false);
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>PrefetchRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<PrefetchRowsCpuOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>BringRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<PrefetchRowsCpuOp>);

#if GOOGLE_CUDA
// Tables on a GPU: from host memory on a stream beside, from disk in a thread.
class PrefetchRowsGpuOp : public PrefetchRowsOp {
  using PrefetchRowsOp::PrefetchRowsOp;

  // Held by the thread, so that all of it lives until the thread is done.
  struct Work {
    std::vector<EmbeddingTablePtr> tables;
    std::vector<std::shared_ptr<EmbeddingTable>> on_disk;  // what they hold as of the op, or null
    int device;
  };

  absl::Status Prefetch(OpKernelContext* context, std::vector<EmbeddingTablePtr> tables,
                        const std::vector<NextKeys>& keys, const Tensor&) override {
    std::vector<std::shared_ptr<EmbeddingTable>> on_disk(tables.size());
    TF_RETURN_IF_ERROR(PrefetchFromHost(context, tables, keys, &on_disk));
    if (std::all_of(on_disk.begin(), on_disk.end(), [](const auto& table) { return !table; })) {
      return absl::OkStatus();
    }
    auto work =
        std::make_shared<Work>(Work{std::move(tables), std::move(on_disk), CurrentDevice()});
    tensorflow::Env::Default()->SchedClosure(
        [work] { const auto unused = CatchErrors([&] { return PrefetchFromDisk(*work); }); });
    return absl::OkStatus();
  }

  // on_disk: receives the tables that may have rows of the keys on disk.
  static absl::Status PrefetchFromHost(OpKernelContext* context,
                                       const std::vector<EmbeddingTablePtr>& tables,
                                       const std::vector<NextKeys>& keys,
                                       std::vector<std::shared_ptr<EmbeddingTable>>* on_disk) {
    SharedLocks locks;
    locks.Lock(MutexesOf(tables));
    for (const EmbeddingTablePtr& table : tables) TF_RETURN_IF_ERROR(Check(context, *table));
    std::vector<DeviceKeysToLocate> requests;
    for (const NextKeys& of : keys) {
      requests.push_back({tables[of.table]->table()->device(), of.keys, of.num_keys, nullptr});
    }
    const auto count = static_cast<int64_t>(requests.size());
    Tensor scratch;
    TF_RETURN_IF_ERROR(AllocateScratch(
        context, LocateRowsScratchBytes(requests.data(), count, Access::kRead), &scratch));
    TF_RETURN_IF_ERROR(
        ToStatus(PrefetchRowsCuda(requests.data(), count, scratch.data(), StreamOf(context))));
    for (size_t t = 0; t < tables.size(); ++t) {
      if (HasRowsToPrefetch(*tables[t]->table()->device())) (*on_disk)[t] = tables[t]->table();
    }
    return absl::OkStatus();
  }

  // Piece by piece, as on a CPU.
  static absl::Status PrefetchFromDisk(const Work& work) {
    SetCurrentDevice(work.device);
    for (size_t t = 0; t < work.tables.size(); ++t) {
      EmbeddingTable* table = work.on_disk[t].get();
      if (table == nullptr) continue;
      AwaitRowsToPrefetch(*table->device());
      for (bool are_more = true; are_more;) {
        const tensorflow::tf_shared_lock lock(*work.tables[t]->mu());
        if (work.tables[t]->table().get() != table) break;  // it was initialized anew
        are_more = group_embedding::PrefetchFromDisk(table->device());
      }
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>PrefetchRows").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"),
    Guarded<PrefetchRowsGpuOp>);
REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>BringRows").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"),
    Guarded<PrefetchRowsGpuOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
