#include "exchange/pack_rows.h"

#include <limits>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/kernels/device.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

absl::Status CheckCounts(const Tensor& counts, int64_t num_tables) {
  if (counts.dims() == 2 && counts.dim_size(1) == num_tables) return absl::OkStatus();
  return absl::InvalidArgumentError("counts: expected shape [ranks, " + std::to_string(num_tables) +
                                    "], got " + counts.shape().DebugString());
}

RowParts MakeParts(const Tensor& counts, const std::vector<int32_t>& dims, int64_t element_bytes) {
  return {counts.flat<int64_t>().data(), dims.data(), counts.dim_size(0),
          static_cast<int64_t>(dims.size()), element_bytes};
}

int64_t RowsOf(const Tensor& counts, int64_t table) {
  int64_t rows = 0;
  for (int64_t n = 0; n < counts.dim_size(0); ++n) rows += counts.matrix<int64_t>()(n, table);
  return rows;
}

class PackRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const int num_tables = context->num_inputs() - 1;
    const Tensor& counts = context->input(num_tables);
    OP_REQUIRES_OK(context, CheckCounts(counts, num_tables));
    std::vector<int32_t> dims;
    std::vector<const void*> matrices;
    for (int t = 0; t < num_tables; ++t) {
      const Tensor& matrix = context->input(t);
      OP_REQUIRES(context, matrix.dims() == 2 && matrix.dim_size(0) == RowsOf(counts, t),
                  absl::InvalidArgumentError("matrices[" + std::to_string(t) + "]: expected " +
                                             std::to_string(RowsOf(counts, t)) +
                                             " rows, as counts says, got shape " +
                                             matrix.shape().DebugString()));
      dims.push_back(static_cast<int32_t>(matrix.dim_size(1)));
      matrices.push_back(matrix.data());
    }
    const RowParts parts =
        MakeParts(counts, dims, tensorflow::DataTypeSize(context->input_dtype(0)));
    std::vector<int64_t> splits(parts.num_ranks);
    PackedSplits(parts, splits.data());
    Tensor* packed;
    OP_REQUIRES_OK(context, Allocate(context, splits, &packed));
    PackRows(parts, matrices.data(), packed->data(), ThreadsOf(context));
  }

 private:
  static absl::Status Allocate(OpKernelContext* context, const std::vector<int64_t>& splits,
                               Tensor** packed) {
    const int64_t num_ranks = static_cast<int64_t>(splits.size());
    Tensor* int32_splits;
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_ranks}), &int32_splits));
    int64_t size = 0;
    for (int64_t n = 0; n < num_ranks; ++n) {
      if (splits[n] > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError("expected fewer than 2^31 elements for one rank, got " +
                                          std::to_string(splits[n]) + "; use smaller batches");
      }
      int32_splits->flat<int32_t>()(n) = static_cast<int32_t>(splits[n]);
      size += splits[n];
    }
    return context->allocate_output(0, TensorShape({size}), packed);
  }
};

class UnpackRowsOp : public OpKernel {
 public:
  explicit UnpackRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_tables;
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables));
    OP_REQUIRES(context, static_cast<int>(dims_.size()) == num_tables,
                absl::InvalidArgumentError("dims: expected one per table"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& packed = context->input(0);
    const Tensor& counts = context->input(1);
    OP_REQUIRES_OK(context, CheckCounts(counts, static_cast<int64_t>(dims_.size())));
    std::vector<void*> matrices(dims_.size());
    int64_t size = 0;
    for (size_t t = 0; t < dims_.size(); ++t) {
      Tensor* matrix;
      const int64_t rows = RowsOf(counts, static_cast<int64_t>(t));
      OP_REQUIRES_OK(context, context->allocate_output(static_cast<int>(t),
                                                       TensorShape({rows, dims_[t]}), &matrix));
      matrices[t] = matrix->data();
      size += rows * dims_[t];
    }
    OP_REQUIRES(context, packed.NumElements() == size,
                absl::InvalidArgumentError(
                    "packed: expected " + std::to_string(size) + " elements, as counts says, got " +
                    std::to_string(packed.NumElements()) + "; do all ranks run the same model?"));
    UnpackRows(MakeParts(counts, dims_, tensorflow::DataTypeSize(packed.dtype())), packed.data(),
               matrices.data(), ThreadsOf(context));
  }

 private:
  std::vector<int32_t> dims_;
};

REGISTER_KERNEL_BUILDER(Name("PackRows").Device(tensorflow::DEVICE_CPU), PackRowsOp);
REGISTER_KERNEL_BUILDER(Name("UnpackRows").Device(tensorflow::DEVICE_CPU), UnpackRowsOp);

}  // namespace
}  // namespace group_embedding
