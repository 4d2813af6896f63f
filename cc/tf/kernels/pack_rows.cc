#include "exchange/pack_rows.h"

#include <limits>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/kernels/device.h"
#include "tf/kernels/group_attrs.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

std::vector<DataType> CoreTypes(const std::vector<tensorflow::DataType>& types) {
  std::vector<DataType> core;
  for (const tensorflow::DataType type : types) core.push_back(ToCore(type));
  return core;
}

absl::Status CheckCounts(const Tensor& counts, size_t num_tables) {
  if (counts.dims() == 2 && counts.dim_size(1) == static_cast<int64_t>(num_tables)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("counts: expected shape [ranks, " + std::to_string(num_tables) +
                                    "], got " + counts.shape().DebugString());
}

RowParts MakeParts(const Tensor& counts, const std::vector<int32_t>& dims,
                   const std::vector<DataType>& wire) {
  return {counts.flat<int64_t>().data(), dims.data(), wire.data(), counts.dim_size(0),
          static_cast<int64_t>(dims.size())};
}

int64_t RowsOf(const Tensor& counts, int64_t table) {
  int64_t rows = 0;
  for (int64_t n = 0; n < counts.dim_size(0); ++n) rows += counts.matrix<int64_t>()(n, table);
  return rows;
}

class PackRowsOp : public OpKernel {
 public:
  explicit PackRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<tensorflow::DataType> dtypes, wire;
    int num_indices;
    OP_REQUIRES_OK(context, context->GetAttr("dtypes", &dtypes));
    OP_REQUIRES_OK(context, context->GetAttr("wire", &wire));
    OP_REQUIRES_OK(context, context->GetAttr("num_indices", &num_indices));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    dtypes_ = CoreTypes(dtypes);
    wire_ = CoreTypes(wire);
    has_indices_ = num_indices > 0;
    OP_REQUIRES(context,
                wire_.size() == dtypes_.size() &&
                    (!has_indices_ || num_indices == static_cast<int>(dtypes_.size())),
                absl::InvalidArgumentError("wire, indices: expected one per table"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& counts = context->input(context->num_inputs() - 1);
    OP_REQUIRES_OK(context, CheckCounts(counts, dtypes_.size()));
    std::vector<int32_t> dims;
    std::vector<RowSlices> slices;
    for (size_t t = 0; t < dtypes_.size(); ++t) {
      OP_REQUIRES_OK(context, AddTable(context, counts, static_cast<int>(t), &dims, &slices));
    }
    const RowParts parts = MakeParts(counts, dims, wire_);
    std::vector<int64_t> splits(parts.num_ranks);
    PackedSplits(parts, splits.data());
    Tensor* packed;
    OP_REQUIRES_OK(context, Allocate(context, splits, &packed));
    PackRows(parts, slices.data(), scale_, packed->data(), ThreadsOf(context));
  }

 private:
  absl::Status AddTable(OpKernelContext* context, const Tensor& counts, int table,
                        std::vector<int32_t>* dims, std::vector<RowSlices>* slices) const {
    const Tensor& rows = context->input(table);
    const int64_t expected = RowsOf(counts, table);
    const std::string which = "rows[" + std::to_string(table) + "]: expected ";
    if (rows.dims() != 2 || (!has_indices_ && rows.dim_size(0) != expected)) {
      return absl::InvalidArgumentError(which + std::to_string(expected) +
                                        " rows, as counts says, got shape " +
                                        rows.shape().DebugString());
    }
    int64_t* indices = nullptr;
    if (has_indices_) {
      const Tensor& given = context->input(static_cast<int>(dtypes_.size()) + table);
      indices = static_cast<int64_t*>(given.data());
      const int64_t count = given.NumElements();
      bool ascending = count == rows.dim_size(0);
      for (int64_t i = 0; ascending && i < count; ++i) {
        ascending = indices[i] > (i == 0 ? -1 : indices[i - 1]) && indices[i] < expected;
      }
      if (!ascending) {
        return absl::InvalidArgumentError(which + "an index for each, ascending and below " +
                                          std::to_string(expected));
      }
    }
    dims->push_back(static_cast<int32_t>(rows.dim_size(1)));
    slices->push_back({rows.data(), dtypes_[table], !has_indices_, indices, rows.dim_size(0)});
    return absl::OkStatus();
  }

  static absl::Status Allocate(OpKernelContext* context, const std::vector<int64_t>& splits,
                               Tensor** packed) {
    const int64_t num_ranks = static_cast<int64_t>(splits.size());
    Tensor* int32_splits;
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_ranks}), &int32_splits));
    int64_t size = 0;
    for (int64_t n = 0; n < num_ranks; ++n) {
      if (splits[n] > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError("expected fewer than 2^31 words for one rank, got " +
                                          std::to_string(splits[n]) + "; use smaller batches");
      }
      int32_splits->flat<int32_t>()(n) = static_cast<int32_t>(splits[n]);
      size += splits[n];
    }
    return context->allocate_output(0, TensorShape({size}), packed);
  }

  std::vector<DataType> dtypes_, wire_;
  bool has_indices_;
  float scale_;
};

class UnpackRowsOp : public OpKernel {
 public:
  explicit UnpackRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<tensorflow::DataType> dtypes, wire;
    int num_indices;
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(context, context->GetAttr("dtypes", &dtypes));
    OP_REQUIRES_OK(context, context->GetAttr("wire", &wire));
    OP_REQUIRES_OK(context, context->GetAttr("num_indices", &num_indices));
    dtypes_ = CoreTypes(dtypes);
    wire_ = CoreTypes(wire);
    has_indices_ = num_indices > 0;
    const size_t num_tables = dims_.size();
    OP_REQUIRES(context,
                dtypes_.size() == num_tables && wire_.size() == num_tables &&
                    (!has_indices_ || num_indices == static_cast<int>(num_tables)),
                absl::InvalidArgumentError("dtypes, wire, indices: expected one per table"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& packed = context->input(0);
    const Tensor& counts = context->input(1);
    OP_REQUIRES_OK(context, CheckCounts(counts, dims_.size()));
    const RowParts parts = MakeParts(counts, dims_, wire_);
    OP_REQUIRES_OK(context, CheckSize(parts, packed));
    std::vector<int64_t> num_rows(dims_.size());
    CountPresentRows(parts, packed.data(), num_rows.data());
    std::vector<RowSlices> slices;
    for (size_t t = 0; t < dims_.size(); ++t) {
      OP_REQUIRES_OK(context, AddTable(context, counts, static_cast<int>(t), num_rows[t], &slices));
    }
    UnpackRows(parts, packed.data(), slices.data(), ThreadsOf(context));
  }

 private:
  static absl::Status CheckSize(const RowParts& parts, const Tensor& packed) {
    std::vector<int64_t> splits(parts.num_ranks);
    PackedSplits(parts, splits.data());
    int64_t size = 0;
    for (const int64_t split : splits) size += split;
    if (packed.NumElements() == size) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "packed: expected " + std::to_string(size) + " words, as counts says, got " +
        std::to_string(packed.NumElements()) + "; do all ranks run the same model?");
  }

  absl::Status AddTable(OpKernelContext* context, const Tensor& counts, int table, int64_t num_rows,
                        std::vector<RowSlices>* slices) const {
    Tensor *rows, *indices = nullptr;
    if (!has_indices_ && num_rows != RowsOf(counts, table)) {
      return absl::InvalidArgumentError("packed: expected all rows, got some");
    }
    TF_RETURN_IF_ERROR(
        context->allocate_output(table, TensorShape({num_rows, dims_[table]}), &rows));
    if (has_indices_) {
      TF_RETURN_IF_ERROR(context->allocate_output(static_cast<int>(dims_.size()) + table,
                                                  TensorShape({num_rows}), &indices));
    }
    int64_t* index_data = indices == nullptr ? nullptr : indices->flat<int64_t>().data();
    slices->push_back({rows->data(), dtypes_[table], !has_indices_, index_data, num_rows});
    return absl::OkStatus();
  }

  std::vector<int32_t> dims_;
  std::vector<DataType> dtypes_, wire_;
  bool has_indices_;
};

REGISTER_KERNEL_BUILDER(Name("PackRows").Device(tensorflow::DEVICE_CPU), PackRowsOp);
REGISTER_KERNEL_BUILDER(Name("UnpackRows").Device(tensorflow::DEVICE_CPU), UnpackRowsOp);

}  // namespace
}  // namespace group_embedding
