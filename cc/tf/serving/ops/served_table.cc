// Tables of served models are made and filled.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "table/file/manifest.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/serving/ops/served_tables.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/file_systems.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

class ServedTableOp : public OpKernel {
 public:
  explicit ServedTableOp(OpKernelConstruction* context) : OpKernel(context) {
    int64_t model;
    int slot;
    std::string resource, table_name;
    std::shared_ptr<ServedTables> tables;
    OP_REQUIRES_OK(context, context->GetAttr("model", &model));
    OP_REQUIRES_OK(context, context->GetAttr("slot", &slot));
    OP_REQUIRES_OK(context, context->GetAttr("table", &resource));
    OP_REQUIRES_OK(context, context->GetAttr("table_name", &table_name));
    OP_REQUIRES(context, slot < kNumSlots, absl::InvalidArgumentError("slot: expected 0 or 1"));
    OP_REQUIRES_OK(context, ServedTables::Find(model, &tables));
    ServedTables::Entry* entry = tables->Get(resource, table_name);
    handle_ = Tensor(tensorflow::DT_RESOURCE, TensorShape({}));
    handle_.scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(
            new ServedTableResource(std::move(tables), entry, slot),
            context->device()->attributes().name());
  }

  void Compute(OpKernelContext* context) override { context->set_output(0, handle_); }

 private:
  // Has the resource: requests need not ask the resource manager, once for each table.
  Tensor handle_;
};

class InitializeServedTableOp : public OpKernel {
 public:
  explicit InitializeServedTableOp(OpKernelConstruction* context) : OpKernel(context) {
    tensorflow::DataType dtype;
    std::string admission;
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &options_.dim));
    OP_REQUIRES_OK(context, context->GetAttr("no_row_value", &options_.no_row_value));
    OP_REQUIRES_OK(context, context->GetAttr("admission", &admission));
    OP_REQUIRES(context, options_.dim <= kMaxDim,
                absl::InvalidArgumentError("dim: expected at most " + std::to_string(kMaxDim)));
    options_.dtype = ToCore(dtype);
    options_.has_filter = admission != "all";
  }

  void Compute(OpKernelContext* context) override {
    ServedTablePtr table;
    OP_REQUIRES_OK(context, FindResource(context, 0, &table));
    const Tensor& matrix = context->input(1);
    OP_REQUIRES(context, matrix.dims() == 2 && matrix.dim_size(1) == options_.dim,
                absl::InvalidArgumentError(
                    "table '" + table->name() + "': expected initial values of shape [rows, " +
                    std::to_string(options_.dim) + "], got " + matrix.shape().DebugString()));
    ServedTableOptions options = options_;
    options.matrix_rows = matrix.dim_size(0);
    OP_REQUIRES_OK(context,
                   table->tables()->Make(table->entry(), options,
                                         options.matrix_rows > 0 ? matrix.data() : nullptr));
  }

 private:
  ServedTableOptions options_;
};

absl::Status DataLoss(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::DataLossError(status.message());
}

// A table without rows gets the format of rows that were quantised before, if they are.
absl::Status TakeFormat(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                        ServedTables* tables, ServedTables::Entry* entry) {
  for (size_t f = 0; f < files.size(); ++f) {
    if (!files[f].has_encoded) continue;
    TableFileReader file(saved.paths[f], *saved.source);
    TableFileBlock block;
    TF_RETURN_IF_ERROR(DataLoss(file.Open()));
    while (block.encoded.keys.empty()) TF_RETURN_IF_ERROR(DataLoss(file.Next(&block)));
    return tables->MakeAgain(entry, block.encoded.format);
  }
  return absl::OkStatus();
}

// Adds a block of a file to a table.
absl::Status Load(const TableFileBlock& block, bool changes_only, ServedTable* table) {
  const Deadline deadline = Deadline::In(kPatienceToOpen);
  Status loaded =
      table->Erase(block.erased.data(), static_cast<int64_t>(block.erased.size()), deadline);
  if (loaded.ok()) {
    loaded = table->Load(block.rows.keys.data(), static_cast<int64_t>(block.rows.keys.size()),
                         block.rows.values.data(), changes_only, deadline);
  }
  if (loaded.ok() && !block.encoded.keys.empty()) {
    if (block.encoded.format != table->options().format) {
      return absl::DataLossError("table '" + table->options().name +
                                 "': expected files whose rows have one format");
    }
    loaded = table->LoadEncoded(block.encoded, changes_only, deadline);
  }
  if (loaded.ok()) return absl::OkStatus();
  // A table in memory lacks memory.
  return table->lower() == nullptr ? absl::ResourceExhaustedError(loaded.message())
                                   : FromTier(loaded, deadline);
}

// Fills a table from the files of one save, each read once more than it was verified.
absl::Status Fill(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                  ServedTable* table, std::vector<char>* initial_rows) {
  const ServedTableOptions& options = table->options();
  int64_t num_rows = 0;
  for (const TableFileSummary& file : files) {
    const TableFileHeader& header = file.header;
    if (header.dim != options.dim || header.dtype != options.dtype) {
      return absl::DataLossError("table '" + options.name + "': expected rows of dim " +
                                 std::to_string(options.dim) + " of the graph's type, got dim " +
                                 std::to_string(header.dim));
    }
    num_rows += file.totals.num_rows;
  }
  table->Reserve(num_rows);
  for (const bool changes_only : {false, true}) {
    for (size_t f = 0; f < files.size(); ++f) {
      if (files[f].header.changes_only != changes_only) continue;
      TableFileReader file(saved.paths[f], *saved.source);
      TF_RETURN_IF_ERROR(DataLoss(file.Open()));
      std::vector<char> initial;
      for (bool is_last = false; !is_last;) {
        TableFileBlock block;
        TF_RETURN_IF_ERROR(DataLoss(file.Next(&block)));
        initial.insert(initial.end(), block.initial_rows.begin(), block.initial_rows.end());
        TF_RETURN_IF_ERROR(Load(block, changes_only, table));
        is_last = block.is_last;
      }
      const size_t all = options.matrix_rows * options.dim * SizeOf(options.dtype);
      if (all > 0 && initial.size() == all) {
        table->WriteInitialRows(initial.data());
        *initial_rows = std::move(initial);
      }
    }
  }
  return absl::OkStatus();
}

class RestoreServedTableOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    ServedTablePtr table;
    tstring prefix, text;
    OP_REQUIRES_OK(context, FindResource(context, 0, &table));
    OP_REQUIRES_OK(context, table->CheckInitialized());
    OP_REQUIRES_OK(context, ReadScalar(context, "prefix", &prefix));
    OP_REQUIRES_OK(context, ReadScalar(context, "manifest", &text));
    const absl::Status restored = Restore(*table, prefix, text);
    table->tables()->restore_failure.Fail(restored);
    OP_REQUIRES_OK(context, restored);
  }

 private:
  static absl::Status Restore(const ServedTableResource& table, const std::string& prefix,
                              const std::string& text) {
    Manifest manifest;
    TF_RETURN_IF_ERROR(DataLoss(Decode(text, table.name(), &manifest)));
    const SavedTable saved = FilesOf(manifest, prefix, FileSystemOf(prefix));
    ServedTables& tables = *table.tables();
    const LowerRowsId id = {table.name(), tables.ContentOf(table.name(), text)};
    bool is_there = false;
    TF_RETURN_IF_ERROR(tables.AttachComplete(table.entry(), id, &is_there));
    if (is_there) return absl::OkStatus();
    std::vector<TableFileSummary> files;
    std::vector<char> initial;
    TF_RETURN_IF_ERROR(DataLoss(VerifySavedTable(saved, table.name(), &files)));
    TF_RETURN_IF_ERROR(TakeFormat(saved, files, &tables, table.entry()));
    ServedTable& served = *table.entry()->table;
    tables.AttachEmpty(&served, id);
    TF_RETURN_IF_ERROR(Fill(saved, files, &served, &initial));
    if (served.lower() == nullptr) return absl::OkStatus();
    const Deadline deadline = Deadline::In(kPatienceToOpen);
    return FromTier(served.lower()->Complete(initial, deadline), deadline);
  }
};

// The format of a variable's rows in the checkpoint.
RowFormat StoredFormat(tensorflow::DataType stored, tensorflow::DataType trained) {
  if (stored == tensorflow::DT_INT8) return RowFormat::kInt8;
  if (stored == tensorflow::DT_UINT8) return RowFormat::kFp8;
  return FormatOf(ToCore(stored == tensorflow::DT_BFLOAT16 ? stored : trained));
}

class AssignServedTableOp : public OpKernel {
 public:
  explicit AssignServedTableOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("trained_dtype", &trained_));
  }

  void Compute(OpKernelContext* context) override {
    ServedTablePtr table;
    OP_REQUIRES_OK(context, FindResource(context, 0, &table));
    const Tensor& value = context->input(1);
    const RowFormat format = StoredFormat(value.dtype(), trained_);
    const int64_t more = IsQuantized(format) ? RowBytes(format, 0) : 0;
    OP_REQUIRES(context, value.dims() == 2 && value.dim_size(1) > more,
                absl::InvalidArgumentError("table '" + table->name() +
                                           "': expected shape [rows, dim], got " +
                                           value.shape().DebugString()));
    const bool encoded = format != FormatOf(ToCore(trained_));
    OP_REQUIRES(context, encoded || value.dtype() == trained_,
                absl::InvalidArgumentError("table '" + table->name() + "': expected rows of " +
                                           tensorflow::DataTypeString(trained_) + ", got " +
                                           tensorflow::DataTypeString(value.dtype())));
    ServedTableOptions options;
    options.keyed = false;
    options.dim = static_cast<int32_t>(value.dim_size(1) - more);
    options.dtype = ToCore(trained_);
    options.max_rows = value.dim_size(0);
    OP_REQUIRES(context, table->entry()->table == nullptr,
                absl::FailedPreconditionError("table '" + table->name() +
                                              "': expected to be restored once"));
    OP_REQUIRES_OK(context, table->tables()->Make(table->entry(), options, nullptr));
    const char* rows = static_cast<const char*>(value.data());
    if (!encoded) {
      table->entry()->table->LoadAll(rows);
      return;
    }
    OP_REQUIRES_OK(context, table->tables()->MakeAgain(table->entry(), format));
    table->entry()->table->LoadAllEncoded(rows);
  }

 private:
  tensorflow::DataType trained_;
};

#define REGISTER(name)                                                                  \
  REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>" #name).Device(tensorflow::DEVICE_CPU), \
                          Guarded<name##Op>)
REGISTER(ServedTable);
REGISTER(InitializeServedTable);
REGISTER(RestoreServedTable);
REGISTER(AssignServedTable);
#undef REGISTER

#if GOOGLE_CUDA
// Where the op of lookups is on a GPU, TensorFlow wants those of its tables there. All work on the
// host.
#define REGISTER(name, input)                                                         \
  REGISTER_KERNEL_BUILDER(                                                            \
      Name("GroupEmbedding>" #name).Device(tensorflow::DEVICE_GPU).HostMemory(input), \
      Guarded<name##Op>)
REGISTER(ServedTable, "handle");
REGISTER(InitializeServedTable, "matrix");
REGISTER(RestoreServedTable, "prefix");
REGISTER(AssignServedTable, "value");
#undef REGISTER
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
