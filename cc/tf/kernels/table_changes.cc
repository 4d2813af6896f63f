// A publisher's changes: a snapshot under the locks, then its rows to memory without them.
#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "table/file/memory_file.h"
#include "table/file/save_table.h"
#include "table/random_bits.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tf/support/change_follower.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/guarded_op.h"
#include "tf/support/resource_locks.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// The thread that reads changes. It waits for no thread of TensorFlow's, so that a save, which
// waits for it, always goes on.
tensorflow::thread::ThreadPool* Reader() {
  static auto* reader = new tensorflow::thread::ThreadPool(
      tensorflow::Env::Default(), tensorflow::ThreadOptions(), "table_changes", /*num_threads=*/1,
      /*low_latency_hint=*/false);
  return reader;
}

// A snapshot of changes, and where its content goes.
struct Reading {
  EmbeddingTablePtr resource;
  std::shared_ptr<EmbeddingTable> table;  // outlives the snapshot
  std::unique_ptr<Snapshot> snapshot;
  TableFileHeader header;
  std::shared_ptr<TableChanges> changes;
};

void Read(Reading* reading) {
  const Stage stage("reading changes");
  TableChanges::Content content;
  content.mark = reading->snapshot->mark();
  content.status = CatchErrors([&] {
    return ToStatus(WriteChanges(reading->header, reading->snapshot.get(), "changes",
                                 MemoryFile(&content.file), &content.sum, &content.totals));
  });
  {
    tensorflow::mutex_lock lock(*reading->resource->mu());
    reading->snapshot.reset();
    reading->resource->saves().is_reading_changes = false;
    reading->resource->saves().changes_were_read.notify_all();
  }
  reading->changes->Finish(std::move(content));
}

class SnapshotChangesOp : public OpKernel {
 public:
  explicit SnapshotChangesOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_tables;
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables));
    OP_REQUIRES_OK(context, context->GetAttr("parts", &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("num_parts", &num_parts_));
    OP_REQUIRES_OK(context, context->GetAttr("abandoned_seconds", &abandoned_seconds_));
    const size_t count = static_cast<size_t>(num_tables);
    OP_REQUIRES(context, parts_.size() == count && num_parts_.size() == count,
                absl::InvalidArgumentError("parts, num_parts: expected one per table"));
    for (size_t t = 0; t < count; ++t) {
      OP_REQUIRES(context, parts_[t] >= 0 && parts_[t] < num_parts_[t],
                  absl::InvalidArgumentError("parts: expected at least 0 and less than num_parts"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("snapshot of changes");
    int64_t follower, step;
    OP_REQUIRES_OK(context, ReadFollower(context, &follower));
    OP_REQUIRES_OK(context, ReadScalar(context, "step", &step));
    std::vector<EmbeddingTablePtr> resources(parts_.size());
    OP_REQUIRES_OK(context, FindEmbeddingTables(context, &resources));
    std::vector<tensorflow::mutex*> mutexes = MutexesOf(resources);
    std::vector<Reading> readings(parts_.size());
    for (size_t t = 0; t < readings.size(); ++t) readings[t].resource = std::move(resources[t]);
    Tensor* taken;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &taken));
    {
      ExclusiveLocks locks;
      locks.Lock(std::move(mutexes));
      const absl::Status status =
          CatchErrors([&] { return TakeAll(follower, step, &readings, &taken->scalar<bool>()()); });
      if (!status.ok()) {
        for (Reading& reading : readings) reading.snapshot.reset();
      }
      OP_REQUIRES_OK(context, status);
    }
    if (!taken->scalar<bool>()()) return;
    for (Reading& reading : readings) {
      auto shared = std::make_shared<Reading>(std::move(reading));
      Reader()->Schedule([shared] { Read(shared.get()); });
    }
  }

 private:
  absl::Status TakeAll(int64_t follower, int64_t step, std::vector<Reading>* readings,
                       bool* taken) const {
    *taken = false;
    std::set<const EmbeddingTableResource*> all;
    for (const Reading& reading : *readings) {
      TF_RETURN_IF_ERROR(reading.resource->CheckInitialized());
      if (!all.insert(reading.resource.get()).second) {
        return absl::InvalidArgumentError("table '" + reading.resource->name() +
                                          "': expected each table once, got it twice");
      }
      TF_RETURN_IF_ERROR(
          CheckFollows(*reading.resource, reading.resource->table().get(), follower));
      TableSaves& saves = reading.resource->saves();
      if (saves.IsAbandoned(abandoned_seconds_)) {
        LOG(WARNING) << "table '" << reading.resource->name() << "': dropped the snapshot of a "
                     << "save that has not been written for " << abandoned_seconds_ << " s";
        saves.waiting.reset();
      }
      if (saves.is_writing || saves.waiting != nullptr || saves.is_reading_changes) {
        return absl::OkStatus();
      }
    }
    for (size_t t = 0; t < readings->size(); ++t) {
      Reading& reading = (*readings)[t];
      reading.table = reading.resource->table();
      reading.header = HeaderOf(*reading.table);
      reading.header.save_id = RandomBits();
      reading.header.step = step;
      reading.header.part = parts_[t];
      reading.header.num_parts = num_parts_[t];
      reading.changes = std::make_shared<TableChanges>();
      reading.snapshot =
          reading.table->TakeSnapshot(/*changes_only=*/true, Eviction(), /*step=*/-1, follower);
    }
    for (const Reading& reading : *readings) {
      reading.resource->saves().changes[follower] = reading.changes;
      reading.resource->saves().is_reading_changes = true;
    }
    *taken = true;
    return absl::OkStatus();
  }

  std::vector<int32_t> parts_, num_parts_;
  float abandoned_seconds_;
};

class ReadChangesOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    EmbeddingTablePtr resource;
    int64_t follower;
    OP_REQUIRES_OK_ASYNC(context, FindEmbeddingTable(context, 0, &resource), done);
    OP_REQUIRES_OK_ASYNC(context, ReadFollower(context, &follower), done);
    const std::shared_ptr<TableChanges> changes = Take(resource.get(), follower);
    OP_REQUIRES_ASYNC(context, changes != nullptr,
                      absl::FailedPreconditionError(
                          "table '" + resource->name() +
                          "': expected a snapshot of its changes, got none, or one that was read"),
                      done);
    changes->WhenFinished([context, changes, done = std::move(done)] {
      context->SetStatus(CatchErrors([&] { return SetOutputs(context, changes->content()); }));
      done();
    });
  }

 private:
  static std::shared_ptr<TableChanges> Take(EmbeddingTableResource* resource, int64_t follower) {
    tensorflow::mutex_lock lock(*resource->mu());
    auto& all = resource->saves().changes;
    const auto found = all.find(follower);
    if (found == all.end()) return nullptr;
    std::shared_ptr<TableChanges> changes = std::move(found->second);
    all.erase(found);
    return changes;
  }

  static absl::Status SetOutputs(OpKernelContext* context, TableChanges::Content* content) {
    TF_RETURN_IF_ERROR(content->status);
    const FileSum& sum = content->sum;
    const int64_t numbers[] = {sum.bytes, sum.crc, static_cast<int64_t>(sum.id),
                               content->totals.num_rows, content->totals.num_erased};
    const int64_t mark[] = {content->mark.clock, content->mark.num_erased};
    Tensor *file, *sums, *next;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({}), &file));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({5}), &sums));
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({2}), &next));
    file->scalar<tstring>()() = std::move(content->file);
    std::copy(std::begin(numbers), std::end(numbers), sums->vec<int64_t>().data());
    std::copy(std::begin(mark), std::end(mark), next->vec<int64_t>().data());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SnapshotChanges").Device(tensorflow::DEVICE_CPU),
                        Guarded<SnapshotChangesOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ReadChanges").Device(tensorflow::DEVICE_CPU),
                        Guarded<ReadChangesOp>);

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SnapshotChanges")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("follower")
                            .HostMemory("step")
                            .HostMemory("taken"),
                        Guarded<SnapshotChangesOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ReadChanges")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("follower")
                            .HostMemory("file")
                            .HostMemory("sum")
                            .HostMemory("mark"),
                        Guarded<ReadChangesOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
