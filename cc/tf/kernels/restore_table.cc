// Keyed tables are restored from the files beside a checkpoint.
#include "table/file/restore_table.h"

#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "table/file/manifest.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/file_systems.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::tstring;

absl::Status DataLoss(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::DataLossError(status.message());
}

// The files of the table, by the op's inputs. Warns of those that a newer release would write
// otherwise, unless `warned` already.
absl::Status FindFiles(OpKernelContext* context, const std::string& table, bool warned,
                       SavedTable* saved) {
  tstring prefix, text;
  TF_RETURN_IF_ERROR(ReadScalar(context, "prefix", &prefix));
  TF_RETURN_IF_ERROR(ReadScalar(context, "manifest", &text));
  Manifest manifest;
  TF_RETURN_IF_ERROR(DataLoss(Decode(text, table, &manifest)));
  if (manifest.IsWeak() && !warned) {
    LOG(WARNING) << "table '" << table << "': checkpoint '" << prefix
                 << "' has files of format version 1, of which one of another save in the place of "
                    "one of these is not noticed; save it again for version "
                 // As text: not every TensorFlow exports what writes this type of number.
                 << std::to_string(kFileVersion);
  }
  *saved = FilesOf(manifest, prefix, FileSystemOf(prefix));
  return absl::OkStatus();
}

// Files of another kind of rows than the table's are not damaged.
absl::Status CheckKind(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                       const EmbeddingTable& table) {
  const Status status = CheckFits(saved, files, table);
  return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.message());
}

// Reads all files to their ends. `table`: null if it is not initialized yet.
absl::Status Verify(const SavedTable& saved, const std::string& name, const EmbeddingTable* table,
                    const RestoreOptions& how, std::vector<TableFileSummary>* files) {
  TF_RETURN_IF_ERROR(DataLoss(VerifySavedTable(saved, name, files)));
  if (table == nullptr) return absl::OkStatus();
  TF_RETURN_IF_ERROR(CheckKind(saved, *files, *table));
  return DataLoss(CheckSpace(saved, *files, *table, how));
}

absl::Status GetRestoreOptions(OpKernelConstruction* context, RestoreOptions* how) {
  TF_RETURN_IF_ERROR(context->GetAttr("index", &how->subset.index));
  TF_RETURN_IF_ERROR(context->GetAttr("count", &how->subset.count));
  TF_RETURN_IF_ERROR(context->GetAttr("as_start", &how->as_start));
  if (how->subset.index < how->subset.count) return absl::OkStatus();
  return absl::InvalidArgumentError("index: expected less than count");
}

class VerifyTableOp : public OpKernel {
 public:
  explicit VerifyTableOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetRestoreOptions(context, &how_));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("verifying tables");
    EmbeddingTablePtr resource;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    SavedTable saved;
    OP_REQUIRES_OK(context, FindFiles(context, resource->name(), /*warned=*/false, &saved));
    tensorflow::tf_shared_lock lock(*resource->mu());
    std::vector<TableFileSummary> files;
    OP_REQUIRES_OK(context, Verify(saved, resource->name(), resource->table().get(), how_, &files));
  }

 private:
  RestoreOptions how_;
};

class RestoreTableOp : public OpKernel {
 public:
  explicit RestoreTableOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetRestoreOptions(context, &how_));
    OP_REQUIRES_OK(context, context->GetAttr("verified", &verified_));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("restoring tables");
    EmbeddingTablePtr resource;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    SavedTable saved;
    OP_REQUIRES_OK(context, FindFiles(context, resource->name(), verified_, &saved));
    tensorflow::mutex_lock lock(*resource->mu());
    while (resource->saves().is_reading_changes) resource->saves().changes_were_read.wait(lock);
    OP_REQUIRES_OK(context, resource->CheckInitialized());
    OP_REQUIRES(context, !resource->saves().is_writing,
                absl::FailedPreconditionError("table '" + resource->name() +
                                              "': expected to be restored when no save of it is "
                                              "being written"));
    EmbeddingTable* const table = resource->table().get();
    std::vector<TableFileSummary> files;
    OP_REQUIRES_OK(context, Read(saved, *table, &files));
    resource->saves().Forget();  // what was saved before is not what changes are added to
    OP_REQUIRES_OK(
        context, CatchErrors([&] {
          return DataLoss(RestoreVerified(saved, files, how_, table, ThreadsOf(context)));
        }));
  }

 private:
  absl::Status Read(const SavedTable& saved, const EmbeddingTable& table,
                    std::vector<TableFileSummary>* files) const {
    const std::string& name = table.options().name;
    if (!verified_) return Verify(saved, name, &table, how_, files);
    TF_RETURN_IF_ERROR(DataLoss(ReadHeaders(saved, name, files)));
    return CheckKind(saved, *files, table);
  }

  RestoreOptions how_;
  bool verified_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>VerifyTable").Device(tensorflow::DEVICE_CPU),
                        Guarded<VerifyTableOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>RestoreTable").Device(tensorflow::DEVICE_CPU),
                        Guarded<RestoreTableOp>);

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>VerifyTable")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("prefix")
                            .HostMemory("manifest"),
                        Guarded<VerifyTableOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>RestoreTable")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("prefix")
                            .HostMemory("manifest"),
                        Guarded<RestoreTableOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
