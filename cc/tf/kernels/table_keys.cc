// Ops that read and change keyed tables apart from lookups and updates: FindKeys, InsertKeys and
// others.
#include <algorithm>
#include <string>
#include <vector>

#include "table/check_table.h"
#include "table/complete_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/eviction_words.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/keyed_rows_op.h"
#include "tf/support/table_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

template <typename T>
absl::Status OutputScalar(OpKernelContext* context, int index, T value) {
  Tensor* output;
  TF_RETURN_IF_ERROR(context->allocate_output(index, TensorShape({}), &output));
  output->scalar<T>()() = value;
  return absl::OkStatus();
}

class FindKeysOp : public TableOp {
  using TableOp::TableOp;

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const Tensor& keys = context->input(1);
    Tensor *frequencies, *versions, *tiers;
    TF_RETURN_IF_ERROR(context->allocate_output(0, keys.shape(), &frequencies));
    TF_RETURN_IF_ERROR(context->allocate_output(1, keys.shape(), &versions));
    TF_RETURN_IF_ERROR(context->allocate_output(2, keys.shape(), &tiers));
    std::vector<KeyInfo> infos(keys.NumElements());
    TF_RETURN_IF_ERROR(
        ToStatus(table->Describe(keys.flat<int64_t>().data(), keys.NumElements(), infos.data())));
    for (size_t i = 0; i < infos.size(); ++i) {
      frequencies->flat<int64_t>()(i) = std::max<int64_t>(infos[i].count, 0);
      versions->flat<int64_t>()(i) = infos[i].version;
      tiers->flat<int32_t>()(i) = infos[i].tier;
    }
    return absl::OkStatus();
  }
};

class ExportTableOp : public KeyedRowsOp {
 public:
  explicit ExportTableOp(OpKernelConstruction* context) : KeyedRowsOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("is_unsigned", &is_unsigned_));
  }

 private:
  absl::Status Read(EmbeddingTable* table, KeyedRows* rows) override {
    return ToStatus(table->ReadAll(rows));
  }

  // By keys, ascending.
  void Sort(const std::vector<int64_t>& keys, std::vector<int64_t>* places) const override {
    const uint64_t flip = is_unsigned_ ? 0 : uint64_t{1} << 63;
    std::sort(places->begin(), places->end(), [&](int64_t a, int64_t b) {
      return (static_cast<uint64_t>(keys[a]) ^ flip) < (static_cast<uint64_t>(keys[b]) ^ flip);
    });
  }

  bool is_unsigned_;
};

class InsertKeysOp : public TableOp {
  using TableOp::TableOp;

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const Tensor &keys = context->input(1), &values = context->input(2);
    const TableOptions& options = table->options();
    const int64_t num_keys = keys.NumElements();
    if (keys.dims() != 1 || values.shape() != TensorShape({num_keys, options.dim}) ||
        ToCore(values.dtype()) != options.dtype) {
      return absl::InvalidArgumentError(
          "table '" + options.name + "': expected keys [n] and values [n, " +
          std::to_string(options.dim) + "] of its dtype, got " + keys.shape().DebugString() +
          " and " + values.shape().DebugString());
    }
    KeyedRowsView rows;
    rows.num_keys = num_keys;
    rows.keys = keys.flat<int64_t>().data();
    rows.values = static_cast<const char*>(values.data());
    const Tensor &versions = context->input(3), &frequencies = context->input(4);
    std::vector<int64_t> counts_there, versions_there;
    if (versions.NumElements() + frequencies.NumElements() > 0) {
      // Where only one of the two is given, the other is as it is.
      TF_RETURN_IF_ERROR(
          ToStatus(AppendCounts(*table, rows.keys, num_keys, &counts_there, &versions_there)));
      rows.counts = counts_there.data();
      rows.versions = versions_there.data();
    }
    TF_RETURN_IF_ERROR(Given(versions, options.name, "versions", num_keys, &rows.versions));
    TF_RETURN_IF_ERROR(Given(frequencies, options.name, "frequencies", num_keys, &rows.counts));
    const Status wrong = CheckCounts(options, rows);
    if (!wrong.ok()) return absl::InvalidArgumentError(wrong.message());
    return ToStatus(table->Insert(rows, ThreadsOf(context)));
  }

 private:
  // Has `values` be those of a tensor, if there are any.
  static absl::Status Given(const Tensor& tensor, const std::string& table, const char* what,
                            int64_t num_keys, const int64_t** values) {
    if (tensor.NumElements() == 0) return absl::OkStatus();
    if (tensor.NumElements() != num_keys) {
      return absl::InvalidArgumentError("table '" + table + "': expected " +
                                        std::to_string(num_keys) + " " + what +
                                        ", one per key, got " + tensor.shape().DebugString());
    }
    *values = tensor.flat<int64_t>().data();
    return absl::OkStatus();
  }
};

class EraseKeysOp : public TableOp {
  using TableOp::TableOp;

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const Tensor& keys = context->input(1);
    return OutputScalar(context, 0, table->Erase(keys.flat<int64_t>().data(), keys.NumElements()));
  }
};

class EvictKeysOp : public TableOp {
 public:
  explicit EvictKeysOp(OpKernelConstruction* context) : TableOp(context) {
    std::string kind;
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    int64_t steps_to_live, minutes_to_live;
    float l2_weight;
    OP_REQUIRES_OK(context, context->GetAttr("steps_to_live", &steps_to_live));
    OP_REQUIRES_OK(context, context->GetAttr("l2_weight", &l2_weight));
    OP_REQUIRES_OK(context, context->GetAttr("minutes_to_live", &minutes_to_live));
    OP_REQUIRES(context, ParseEviction(kind, steps_to_live, l2_weight, minutes_to_live, &eviction_),
                absl::InvalidArgumentError("kind: " + std::string(kEvictionWords) + kind + "'"));
  }

 private:
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    int64_t step;
    TF_RETURN_IF_ERROR(ReadScalar(context, "step", &step));
    return OutputScalar(context, 0, table->Evict(eviction_, step, ThreadsOf(context)));
  }

  Eviction eviction_;
};

class TableStatsOp : public TableOp {
  using TableOp::TableOp;

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    TF_RETURN_IF_ERROR(OutputScalar(context, 0, table->num_keys()));
    TF_RETURN_IF_ERROR(OutputScalar(context, 1, table->memory_bytes()));
    return OutputScalar(context, 2, table->load_factor());
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>FindKeys").Device(tensorflow::DEVICE_CPU),
                        Guarded<FindKeysOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ExportTable").Device(tensorflow::DEVICE_CPU),
                        Guarded<ExportTableOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>InsertKeys").Device(tensorflow::DEVICE_CPU),
                        Guarded<InsertKeysOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>EraseKeys").Device(tensorflow::DEVICE_CPU),
                        Guarded<EraseKeysOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>EvictKeys").Device(tensorflow::DEVICE_CPU),
                        Guarded<EvictKeysOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>TableStats").Device(tensorflow::DEVICE_CPU),
                        Guarded<TableStatsOp>);

#if GOOGLE_CUDA
// For tables on the GPU, inputs and outputs are in host memory, as the core expects.
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>FindKeys")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("frequencies")
                            .HostMemory("versions")
                            .HostMemory("tiers"),
                        Guarded<FindKeysOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ExportTable")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("values")
                            .HostMemory("versions")
                            .HostMemory("frequencies"),
                        Guarded<ExportTableOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>InsertKeys")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("values")
                            .HostMemory("versions")
                            .HostMemory("frequencies"),
                        Guarded<InsertKeysOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>EraseKeys")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("num_erased"),
                        Guarded<EraseKeysOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>EvictKeys")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("step")
                            .HostMemory("num_erased"),
                        Guarded<EvictKeysOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>TableStats")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("num_keys")
                            .HostMemory("memory_bytes")
                            .HostMemory("load_factor"),
                        Guarded<TableStatsOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
