// The base of ops that give keys with their rows, versions and counts.
#pragma once

#include <cstring>
#include <numeric>
#include <vector>

#include "table/embedding_table.h"
#include "tf/support/group_attrs.h"
#include "tf/support/table_op.h"

namespace group_embedding {

// Outputs: keys [n], values [n, dim] or, where rows are left out, [0, dim], versions [n],
// frequencies [n].
class KeyedRowsOp : public TableOp {
 public:
  explicit KeyedRowsOp(tensorflow::OpKernelConstruction* context) : TableOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

 private:
  virtual absl::Status Read(EmbeddingTable* table, KeyedRows* rows) = 0;
  // Puts the places of keys, which are 0, 1, ..., into the order of the outputs.
  virtual void Sort(const std::vector<int64_t>& keys, std::vector<int64_t>* places) const {}

  absl::Status Run(tensorflow::OpKernelContext* context, EmbeddingTable* table) override {
    using tensorflow::TensorShape;
    const TableOptions& options = table->options();
    if (options.dtype != ToCore(dtype_) || options.dim != dim_) {
      return absl::InvalidArgumentError("table '" + options.name + "': expected its dtype and dim");
    }
    KeyedRows rows;
    TF_RETURN_IF_ERROR(Read(table, &rows));
    const int64_t num_keys = static_cast<int64_t>(rows.keys.size());
    const int64_t num_rows = rows.values.empty() ? 0 : num_keys;
    tensorflow::Tensor *keys, *values, *versions, *frequencies;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({num_keys}), &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_rows, dim_}), &values));
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({num_keys}), &versions));
    TF_RETURN_IF_ERROR(context->allocate_output(3, TensorShape({num_keys}), &frequencies));
    std::vector<int64_t> places(num_keys);
    std::iota(places.begin(), places.end(), 0);
    Sort(rows.keys, &places);
    for (int64_t to = 0; to < num_keys; ++to) {
      keys->vec<int64_t>()(to) = rows.keys[places[to]];
      versions->vec<int64_t>()(to) = rows.versions[places[to]];
      frequencies->vec<int64_t>()(to) = rows.counts[places[to]];
    }
    const int64_t row_bytes = dim_ * SizeOf(options.dtype);
    char* row = static_cast<char*>(values->data());
    for (int64_t to = 0; to < num_rows; ++to, row += row_bytes) {
      std::memcpy(row, rows.values.data() + places[to] * row_bytes, row_bytes);
    }
    return absl::OkStatus();
  }

  tensorflow::DataType dtype_;
  int32_t dim_;
};

}  // namespace group_embedding
