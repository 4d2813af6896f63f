// Snapshots of keyed tables, which save_table.cc writes to files.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "table/file/manifest.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/eviction_words.h"
#include "tf/support/file_systems.h"
#include "tf/support/guarded_op.h"
#include "tf/support/resource_locks.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Whether a save of changes could name the files of the last full one.
bool HasFullSave(const FullSave& full, const std::shared_ptr<EmbeddingTable>& table) {
  return table != nullptr && full.table.lock() == table &&
         std::all_of(full.files.begin(), full.files.end(), [&](const SavedFile& file) {
           return FileSystemOf(full.prefix).Exists(PathOf(full.prefix, file.suffix));
         });
}

class SnapshotTablesOp : public OpKernel {
 public:
  explicit SnapshotTablesOp(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<std::string> kinds;
    std::vector<int64_t> steps_to_live, minutes_to_live;
    std::vector<float> l2_weights;
    int num_tables;
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables));
    OP_REQUIRES_OK(context, context->GetAttr("evictions", &kinds));
    OP_REQUIRES_OK(context, context->GetAttr("steps_to_live", &steps_to_live));
    OP_REQUIRES_OK(context, context->GetAttr("l2_weights", &l2_weights));
    OP_REQUIRES_OK(context, context->GetAttr("minutes_to_live", &minutes_to_live));
    const size_t count = static_cast<size_t>(num_tables);
    if (minutes_to_live.empty()) minutes_to_live.resize(count);
    OP_REQUIRES(context,
                kinds.size() == count && steps_to_live.size() == count &&
                    l2_weights.size() == count && minutes_to_live.size() == count,
                absl::InvalidArgumentError("evictions: expected one per table"));
    for (size_t t = 0; t < count; ++t) {
      Eviction eviction;
      OP_REQUIRES(
          context,
          ParseEviction(kinds[t], steps_to_live[t], l2_weights[t], minutes_to_live[t], &eviction),
          absl::InvalidArgumentError("evictions: " + std::string(kEvictionWords) + kinds[t] + "'"));
      evictions_.push_back(eviction);
    }
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("snapshot");
    std::vector<EmbeddingTablePtr> resources(evictions_.size());
    OP_REQUIRES_OK(context, FindEmbeddingTables(context, &resources));
    const Tensor *steps, *changes_only;
    OP_REQUIRES_OK(context, context->input("steps", &steps));
    OP_REQUIRES_OK(context, context->input("changes_only", &changes_only));
    OP_REQUIRES(context, steps->shape() == TensorShape({static_cast<int64_t>(resources.size())}),
                absl::InvalidArgumentError("steps: expected one per table"));
    OP_REQUIRES(context, changes_only->shape() == steps->shape(),
                absl::InvalidArgumentError("changes_only: expected one per table"));
    Tensor* snapshot;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &snapshot));
    static std::atomic<int64_t> last_id{0};
    const int64_t id = snapshot->scalar<int64_t>()() = ++last_id;

    const std::unique_ptr<ExclusiveLocks> locks = LockWithoutChanges(resources);
    for (const EmbeddingTablePtr& resource : resources) {
      OP_REQUIRES_OK(context, resource->CheckInitialized());
      OP_REQUIRES(context, !resource->saves().is_writing,
                  absl::FailedPreconditionError("table '" + resource->name() +
                                                "': expected one save at a time, got another "
                                                "while one is being written"));
    }
    for (size_t t = 0; t < resources.size(); ++t) {
      OP_REQUIRES_OK(context, CatchErrors([&] {
                       Take(id, evictions_[t], steps->vec<int64_t>()(t),
                            changes_only->vec<bool>()(t), resources[t].get());
                       return absl::OkStatus();
                     }));
    }
  }

 private:
  // The locks of all tables, of which no changes are being read.
  static std::unique_ptr<ExclusiveLocks> LockWithoutChanges(
      const std::vector<EmbeddingTablePtr>& resources) {
    const auto is_read = [](const EmbeddingTablePtr& resource) {
      return resource->saves().is_reading_changes;
    };
    for (;;) {
      for (const EmbeddingTablePtr& resource : resources) {
        tensorflow::mutex_lock lock(*resource->mu());
        while (is_read(resource)) resource->saves().changes_were_read.wait(lock);
      }
      auto locks = std::make_unique<ExclusiveLocks>();
      locks->Lock(MutexesOf(resources));
      if (std::none_of(resources.begin(), resources.end(), is_read)) return locks;
    }
  }

  static void Take(int64_t id, const Eviction& eviction, int64_t step, bool changes_only,
                   EmbeddingTableResource* resource) {
    TableSaves& saves = resource->saves();
    saves.waiting.reset();
    const std::shared_ptr<EmbeddingTable>& table = resource->table();
    auto save = std::make_unique<TableSave>();
    save->id = id;
    save->table = table;
    save->header = HeaderOf(*table);
    save->header.step = step;
    save->header.changes_only =
        changes_only && HasFullSave(saves.full, table) && table->changes()->Has(kSaves);
    // What was saved before is complete by now, or has failed.
    saves.hold.reset();
    if (!save->header.changes_only) saves.full.hold.reset();
    save->snapshot = table->TakeSnapshot(save->header.changes_only, eviction, step);
    saves.waiting = std::move(save);
  }

  std::vector<Eviction> evictions_;
};

class FullSaveIdOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    EmbeddingTablePtr resource;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    tensorflow::mutex_lock lock(*resource->mu());
    const FullSave& full = resource->saves().full;
    const bool can_add =
        HasFullSave(full, resource->table()) && resource->table()->changes()->Has(kSaves);
    const uint64_t id = can_add ? full.id : 0;
    output->scalar<int64_t>()() = static_cast<int64_t>(id >> 1);
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SnapshotTables").Device(tensorflow::DEVICE_CPU),
                        Guarded<SnapshotTablesOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>FullSaveId").Device(tensorflow::DEVICE_CPU),
                        Guarded<FullSaveIdOp>);

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SnapshotTables")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("steps")
                            .HostMemory("changes_only")
                            .HostMemory("snapshot"),
                        Guarded<SnapshotTablesOp>);
REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>FullSaveId").Device(tensorflow::DEVICE_GPU).HostMemory("id"),
    Guarded<FullSaveIdOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
