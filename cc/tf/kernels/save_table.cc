// The rows of a snapshot (snapshot_tables.cc) are written to files, without the lock of the table.
#include "table/file/save_table.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "table/file/manifest.h"
#include "table/file/unfinished_saves.h"
#include "table/random_bits.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/io/path.h"
#include "tf/support/device.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/file_systems.h"
#include "tf/support/guarded_op.h"
#include "tf/support/table_writers.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

uint64_t HashOf(const std::string& text) {
  uint64_t hash = text.size();
  for (const char c : text) hash = MixBits(hash + static_cast<unsigned char>(c));
  return hash;
}

// The files of a save that an op of a session's run has written. The run may write the index next,
// while another save of the table begins: so it holds them until it ends.
class HeldSave : public tensorflow::ResourceBase {
 public:
  static absl::Status HoldUntilRunEnds(OpKernelContext* context, std::shared_ptr<const void> hold) {
    tensorflow::ScopedStepContainer* const step = context->step_container();
    const bool is_run = step != nullptr && step->StepId() > 0;  // eager code has one without an end
    if (hold == nullptr || !is_run) return absl::OkStatus();
    const std::string name = "group_embedding_save/" + std::to_string(RandomBits());
    return step->Create(context->resource_manager(), name, new HeldSave(std::move(hold)));
  }

  explicit HeldSave(std::shared_ptr<const void> hold) : hold_(std::move(hold)) {}
  std::string DebugString() const override { return "a save that is being written"; }

 private:
  const std::shared_ptr<const void> hold_;
};

// Writes in threads of its own: TensorFlow's are few, and training waits for one.
class SaveTableOp : public tensorflow::AsyncOpKernel {
 public:
  explicit SaveTableOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("part", &part_));
    OP_REQUIRES_OK(context, context->GetAttr("num_parts", &num_parts_));
    OP_REQUIRES(context, part_ < num_parts_,
                absl::InvalidArgumentError("part: expected less than num_parts"));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    TableWriters()->Schedule([this, context, done = std::move(done), device = CurrentDevice()] {
      SetCurrentDevice(device);
      context->SetStatus(Save(context));
      done();
    });
  }

 private:
  absl::Status Save(OpKernelContext* context) const {
    const Stage stage("writing tables");
    EmbeddingTablePtr resource;
    TF_RETURN_IF_ERROR(FindEmbeddingTable(context, 0, &resource));
    tstring prefix;
    int64_t snapshot;
    TF_RETURN_IF_ERROR(ReadScalar(context, "prefix", &prefix));
    TF_RETURN_IF_ERROR(ReadScalar(context, "snapshot", &snapshot));
    std::unique_ptr<TableSave> save;
    FullSave full;
    {
      tensorflow::mutex_lock lock(*resource->mu());
      TableSaves& saves = resource->saves();
      if (saves.waiting == nullptr || saves.waiting->id != snapshot) {
        return absl::FailedPreconditionError("table '" + resource->name() +
                                             "': expected its snapshot, got that of another save, "
                                             "or one that was written already, or that waited "
                                             "until a publisher dropped it");
      }
      save = std::move(saves.waiting);
      full = saves.full;
      saves.is_writing = true;
      writing_saves.Begin();
    }
    Manifest manifest;
    std::shared_ptr<const void> hold;
    const absl::Status status =
        CatchErrors([&] { return Write(prefix, full, save.get(), &hold, &manifest); });
    {
      tensorflow::mutex_lock lock(*resource->mu());
      resource->saves().hold = hold;
      if (status.ok()) Remember(prefix, manifest, *save, hold, &resource->saves().full);
      save->snapshot.reset();
      resource->saves().is_writing = false;
      writing_saves.End();
    }
    TF_RETURN_IF_ERROR(status);
    TF_RETURN_IF_ERROR(HeldSave::HoldUntilRunEnds(context, std::move(hold)));
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({}), &output));
    output->scalar<tstring>()() = Encode(manifest);
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& prefix, const FullSave& full, TableSave* save,
                     std::shared_ptr<const void>* hold, Manifest* manifest) const {
    const std::string folder(tensorflow::io::Dirname(prefix));
    if (!folder.empty()) {
      TF_RETURN_IF_ERROR(tensorflow::Env::Default()->RecursivelyCreateDir(folder));
    }
    const FileSystem& files = FileSystemOf(prefix);
    if (IsLocal(prefix)) *hold = HoldSave(prefix);
    save->header.part = part_;
    save->header.num_parts = num_parts_;
    // All parts of a save have the same number, and no other save has.
    const std::string kind = save->header.changes_only ? "changes" : "rows";
    save->header.save_id =
        num_parts_ == 1 ? RandomBits()
                        : HashOf(kind + " " + prefix + "@" + std::to_string(save->header.step));
    manifest->table = save->header.table;
    manifest->step = save->header.step;
    if (save->header.changes_only) {
      manifest->files = full.files;
      for (const SavedFile& file : full.files) {
        TF_RETURN_IF_ERROR(
            ToStatus(files.Share(PathOf(full.prefix, file.suffix), PathOf(prefix, file.suffix))));
      }
    }
    SavedFile file;
    file.changes_only = save->header.changes_only;
    file.suffix = NewSuffix(file.changes_only);
    TF_RETURN_IF_ERROR(ToStatus(WriteTable(save->header, save->snapshot.get(),
                                           PathOf(prefix, file.suffix), files, &file.sum)));
    manifest->files.push_back(file);
    return absl::OkStatus();
  }

  static void Remember(const std::string& prefix, const Manifest& manifest, const TableSave& save,
                       std::shared_ptr<const void> hold, FullSave* full) {
    save.snapshot->Keep();
    full->prefix = prefix;
    full->hold = std::move(hold);
    if (save.header.changes_only) return;
    full->table = save.table;
    full->id = save.header.save_id;
    full->files = manifest.files;
  }

  int part_, num_parts_;
};

class MergeManifestsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto parts = context->input(0).flat<tstring>();
    OP_REQUIRES(context, parts.size() > 0,
                absl::InvalidArgumentError("manifests: expected at least one"));
    Manifest merged;
    for (int64_t p = 0; p < parts.size(); ++p) {
      Manifest part;
      Status status = Decode(parts(p), "part " + std::to_string(p), &part);
      if (status.ok() && p > 0) status = AddPart(part, &merged);
      OP_REQUIRES(context, status.ok(), absl::InvalidArgumentError(status.message()));
      if (p == 0) merged = part;
    }
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<tstring>()() = Encode(merged);
  }
};

class SeesFilesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& prefixes = context->input(0);
    const Tensor& manifests = context->input(1);
    OP_REQUIRES(context, prefixes.dims() == 1 && prefixes.shape() == manifests.shape(),
                absl::InvalidArgumentError("expected as many manifests as prefixes, got " +
                                           manifests.shape().DebugString() + " and " +
                                           prefixes.shape().DebugString()));
    Tensor* sees;
    OP_REQUIRES_OK(context, context->allocate_output(0, prefixes.shape(), &sees));
    for (int64_t i = 0; i < prefixes.NumElements(); ++i) {
      std::vector<std::string> paths;
      OP_REQUIRES_OK(context,
                     PathsOf(prefixes.vec<tstring>()(i), manifests.vec<tstring>()(i), &paths));
      sees->vec<bool>()(i) = std::all_of(paths.begin(), paths.end(), Exists);
    }
  }

 private:
  static absl::Status PathsOf(const std::string& prefix, const std::string& manifest,
                              std::vector<std::string>* paths) {
    if (manifest.empty()) {
      paths->push_back(prefix + ".index");
      return absl::OkStatus();
    }
    Manifest table;
    const Status status = Decode(manifest, prefix, &table);
    if (!status.ok()) return absl::InvalidArgumentError(status.message());
    for (const SavedFile& file : table.files) paths->push_back(PathOf(prefix, file.suffix));
    return absl::OkStatus();
  }

  // A client of a network's file system may answer from what it knew some seconds ago. Nobody has
  // asked for these names before: they, or their folder, are new with each save.
  static bool Exists(const std::string& path) { return FileSystemOf(path).Exists(path); }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SeesFiles").Device(tensorflow::DEVICE_CPU),
                        Guarded<SeesFilesOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>MergeManifests").Device(tensorflow::DEVICE_CPU),
                        Guarded<MergeManifestsOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SaveTable").Device(tensorflow::DEVICE_CPU),
                        Guarded<SaveTableOp>);

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SaveTable")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("prefix")
                            .HostMemory("snapshot")
                            .HostMemory("manifest"),
                        Guarded<SaveTableOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
