#include "exchange/host/join_columns.h"

#include <limits>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

constexpr int64_t kMaxDim = 4096;  // of a table

class ColumnsOp : public OpKernel {
 public:
  explicit ColumnsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables_));
    OP_REQUIRES_OK(context, context->GetAttr("num_ranks", &num_ranks_));
    OP_REQUIRES(context, num_ranks_ <= kMaxDim,
                absl::InvalidArgumentError("num_ranks: expected no more than columns"));
  }

 protected:
  int num_tables_;
  int64_t num_ranks_;
};

class JoinColumnsOp : public ColumnsOp {
 public:
  using ColumnsOp::ColumnsOp;

  void Compute(OpKernelContext* context) override {
    Tensor* num_rows;
    OP_REQUIRES_OK(context,
                   context->allocate_output(num_tables_, TensorShape({num_tables_}), &num_rows));
    for (int t = 0; t < num_tables_; ++t) {
      const Tensor& parts = context->input(t);
      OP_REQUIRES_OK(context, CheckParts(parts));
      const JoinedRows sizes = {num_ranks_, parts.dim_size(0) / num_ranks_, parts.dim_size(1)};
      num_rows->vec<int64_t>()(t) = sizes.num_rows;
      Tensor* rows;
      OP_REQUIRES_OK(context,
                     context->allocate_output(
                         t, TensorShape({sizes.num_rows, num_ranks_ * sizes.part_dim}), &rows));
      JoinColumns(sizes, parts.flat<float>().data(), rows->flat<float>().data(),
                  ThreadsOf(context));
    }
  }

 private:
  absl::Status CheckParts(const Tensor& parts) const {
    const bool has_parts = parts.dims() == 2 && parts.dim_size(0) % num_ranks_ == 0;
    if (has_parts && parts.dim_size(1) >= 1 && parts.dim_size(1) <= kMaxDim) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("parts: expected as many rows of each of " +
                                      std::to_string(num_ranks_) + " ranks, got shape " +
                                      parts.shape().DebugString());
  }
};

class SplitColumnsOp : public ColumnsOp {
 public:
  using ColumnsOp::ColumnsOp;

  void Compute(OpKernelContext* context) override {
    const Tensor& num_rows = context->input(2 * num_tables_);
    OP_REQUIRES(context, num_rows.dims() == 1 && num_rows.NumElements() == num_tables_,
                absl::InvalidArgumentError("num_rows: expected one per table"));
    for (int t = 0; t < num_tables_; ++t) {
      OP_REQUIRES_OK(context, Split(context, t, num_rows.vec<int64_t>()(t)));
    }
  }

 private:
  absl::Status Split(OpKernelContext* context, int table, int64_t num_rows) const {
    const Tensor& rows = context->input(table);
    const Tensor& indices = context->input(num_tables_ + table);
    if (rows.dims() != 2 || rows.dim_size(1) < 1 || rows.dim_size(1) % num_ranks_ != 0) {
      return absl::InvalidArgumentError("rows: expected a dim that " + std::to_string(num_ranks_) +
                                        " ranks divide, got shape " + rows.shape().DebugString());
    }
    if (indices.dims() != 1 || indices.NumElements() != rows.dim_size(0)) {
      return absl::InvalidArgumentError("indices: expected one per row");
    }
    const auto index = indices.vec<int64_t>();
    if (num_rows < 0 || num_rows > std::numeric_limits<int64_t>::max() / num_ranks_) {
      return absl::InvalidArgumentError("num_rows: expected a number of rows, got " +
                                        std::to_string(num_rows));
    }
    for (int64_t i = 0; i < index.size(); ++i) {
      if (index(i) < 0 || index(i) >= num_rows) {
        return absl::InvalidArgumentError("indices: expected 0 <= index < " +
                                          std::to_string(num_rows) + ", got " +
                                          std::to_string(index(i)));
      }
    }
    const JoinedRows sizes = {num_ranks_, rows.dim_size(0), rows.dim_size(1) / num_ranks_};
    Tensor *parts, *part_indices;
    const int64_t num_parts = num_ranks_ * sizes.num_rows;
    TF_RETURN_IF_ERROR(
        context->allocate_output(table, TensorShape({num_parts, sizes.part_dim}), &parts));
    TF_RETURN_IF_ERROR(
        context->allocate_output(num_tables_ + table, TensorShape({num_parts}), &part_indices));
    SplitColumns(sizes, rows.flat<float>().data(), parts->flat<float>().data(), ThreadsOf(context));
    auto part_index = part_indices->vec<int64_t>();
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      for (int64_t i = 0; i < index.size(); ++i) {
        part_index(rank * index.size() + i) = rank * num_rows + index(i);
      }
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>JoinColumns").Device(tensorflow::DEVICE_CPU),
                        Guarded<JoinColumnsOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>SplitColumns").Device(tensorflow::DEVICE_CPU),
                        Guarded<SplitColumnsOp>);

}  // namespace
}  // namespace group_embedding
