// Keyed tables are asked and changed, beside lookups and updates.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/kernels/device.h"
#include "tf/kernels/embedding_table_resource.h"
#include "tf/kernels/group_attrs.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// An op on one table, its first input, which it has for itself: what is kept of rows may be written
// by whoever locates keys.
class TableOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    EmbeddingTablePtr resource;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    tensorflow::mutex_lock lock(*resource->mu());
    OP_REQUIRES_OK(context, resource->CheckInitialized());
    OP_REQUIRES_OK(context, Run(context, resource->table().get()));
  }

 protected:
  virtual absl::Status Run(OpKernelContext* context, EmbeddingTable* table) = 0;
};

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
    std::vector<int64_t> rows(keys.NumElements());
    table->Find(keys.flat<int64_t>().data(), keys.NumElements(), rows.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool has_row = rows[i] != kNoRow;
      const RowInfo info = has_row ? table->Info(rows[i]) : RowInfo{0, 0, -1, 0};
      frequencies->flat<int64_t>()(i) = info.count;
      versions->flat<int64_t>()(i) = info.version;
      tiers->flat<int32_t>()(i) = has_row ? 0 : -1;
    }
    return absl::OkStatus();
  }
};

class ExportTableOp : public TableOp {
 public:
  explicit ExportTableOp(OpKernelConstruction* context) : TableOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("is_unsigned", &is_unsigned_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

 private:
  struct KeyRow {
    uint64_t order;  // as the keys
    int64_t row;
  };

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const TableOptions& options = table->options();
    if (options.dtype != ToCore(dtype_) || options.dim != dim_) {
      return absl::InvalidArgumentError("table '" + options.name + "': expected its dtype and dim");
    }
    const std::vector<KeyRow> sorted = Sort(*table);
    const int64_t num_keys = static_cast<int64_t>(sorted.size());
    Tensor *keys, *values, *versions, *frequencies;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({num_keys}), &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_keys, dim_}), &values));
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({num_keys}), &versions));
    TF_RETURN_IF_ERROR(context->allocate_output(3, TensorShape({num_keys}), &frequencies));
    const int64_t row_bytes = dim_ * SizeOf(options.dtype);
    const char* rows = static_cast<const char*>(table->rows().rows);
    for (int64_t i = 0; i < num_keys; ++i) {
      const RowInfo info = table->Info(sorted[i].row);
      keys->vec<int64_t>()(i) = info.key;
      versions->vec<int64_t>()(i) = info.version;
      frequencies->vec<int64_t>()(i) = info.count;
      std::memcpy(static_cast<char*>(values->data()) + i * row_bytes,
                  rows + sorted[i].row * row_bytes, row_bytes);
    }
    return absl::OkStatus();
  }

  std::vector<KeyRow> Sort(const EmbeddingTable& table) const {
    std::vector<KeyRow> sorted;
    sorted.reserve(table.num_keys());
    for (int64_t row = table.first_row(); row < table.rows().num_rows; ++row) {
      const RowInfo info = table.Info(row);
      if (info.count < 0) continue;
      const uint64_t key = static_cast<uint64_t>(info.key);
      sorted.push_back({is_unsigned_ ? key : key ^ (uint64_t{1} << 63), row});
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const KeyRow& a, const KeyRow& b) { return a.order < b.order; });
    return sorted;
  }

  bool is_unsigned_;
  tensorflow::DataType dtype_;
  int32_t dim_;
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
    KeyedRows rows;
    rows.keys.assign(keys.flat<int64_t>().data(), keys.flat<int64_t>().data() + num_keys);
    const char* bytes = static_cast<const char*>(values.data());
    rows.values.assign(bytes, bytes + values.TotalBytes());
    std::vector<int64_t> found(num_keys);
    table->Find(rows.keys.data(), num_keys, found.data());
    for (const int64_t row : found) {
      const RowInfo info = row == kNoRow ? RowInfo{0, 0, -1, 0} : table->Info(row);
      rows.counts.push_back(info.count);
      rows.versions.push_back(info.version);
    }
    TF_RETURN_IF_ERROR(Given(context->input(3), options.name, "versions", &rows.versions));
    TF_RETURN_IF_ERROR(Given(context->input(4), options.name, "frequencies", &rows.counts));
    return ToStatus(table->Insert(rows, ThreadsOf(context)));
  }

 private:
  // Replaces `values` by those of a tensor, if there are any.
  static absl::Status Given(const Tensor& tensor, const std::string& table, const char* what,
                            std::vector<int64_t>* values) {
    const int64_t* data = tensor.flat<int64_t>().data();
    if (tensor.NumElements() == 0) return absl::OkStatus();
    if (tensor.NumElements() != static_cast<int64_t>(values->size())) {
      return absl::InvalidArgumentError("table '" + table + "': expected " +
                                        std::to_string(values->size()) + " " + what +
                                        ", one per key, got " + tensor.shape().DebugString());
    }
    values->assign(data, data + tensor.NumElements());
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
    OP_REQUIRES_OK(context, context->GetAttr("steps_to_live", &eviction_.steps_to_live));
    OP_REQUIRES_OK(context, context->GetAttr("l2_weight", &eviction_.l2_weight));
    eviction_.kind =
        kind == "global_step" ? Eviction::Kind::kGlobalStep : Eviction::Kind::kL2Weight;
  }

 private:
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    return OutputScalar(context, 0, table->Evict(eviction_, context->input(1).scalar<int64_t>()()));
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

REGISTER_KERNEL_BUILDER(Name("FindKeys").Device(tensorflow::DEVICE_CPU), FindKeysOp);
REGISTER_KERNEL_BUILDER(Name("ExportTable").Device(tensorflow::DEVICE_CPU), ExportTableOp);
REGISTER_KERNEL_BUILDER(Name("InsertKeys").Device(tensorflow::DEVICE_CPU), InsertKeysOp);
REGISTER_KERNEL_BUILDER(Name("EraseKeys").Device(tensorflow::DEVICE_CPU), EraseKeysOp);
REGISTER_KERNEL_BUILDER(Name("EvictKeys").Device(tensorflow::DEVICE_CPU), EvictKeysOp);
REGISTER_KERNEL_BUILDER(Name("TableStats").Device(tensorflow::DEVICE_CPU), TableStatsOp);

}  // namespace
}  // namespace group_embedding
