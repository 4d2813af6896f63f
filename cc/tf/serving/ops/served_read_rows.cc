// Rows of one table of a served model.
#include <numeric>
#include <utility>
#include <vector>

#include "core/row_format.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/serving/ops/served_tables.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class ServedReadRowsOp : public OpKernel {
 public:
  explicit ServedReadRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

  void Compute(OpKernelContext* context) override {
    ServedTablePtr resource;
    OP_REQUIRES_OK(context, FindResource(context, 0, &resource));
    OP_REQUIRES_OK(context, resource->CheckInitialized());
    const TableView view = resource->view();
    const ServedTableOptions& options = view.table->options();
    OP_REQUIRES(
        context, options.dtype == ToCore(dtype_) && options.dim == dim_,
        absl::InvalidArgumentError("table '" + options.name + "': expected its dtype and dim"));
    const Tensor& keys = context->input(1);
    tensorflow::TensorShape shape = keys.shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(dim_));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    const int64_t count = keys.NumElements();
    std::vector<int64_t> rows(count);
    const ServedTable::Reader reader(view.table);
    if (view.table->Locate(view.overlay, keys.flat<int64_t>().data(), count, rows.data()) > 0) {
      std::vector<int64_t> positions(count);
      std::iota(positions.begin(), positions.end(), 0);
      OP_REQUIRES_OK(context, FetchRows(resource->entry()->table.get(), keys.flat<int64_t>().data(),
                                        std::move(positions), rows.data()));
    }
    const int64_t bytes = dim_ * SizeOf(options.dtype);
    std::vector<float> values(dim_);
    for (int64_t i = 0; i < count; ++i) {
      const char* row = view.table->rows() + rows[i] * view.table->row_bytes();
      DecodeRow(options.format, row, dim_, values.data());
      EncodeRow(DataType::kFloat32, values.data(), dim_, FormatOf(options.dtype),
                static_cast<char*>(output->data()) + i * bytes);
    }
  }

 private:
  tensorflow::DataType dtype_;
  int32_t dim_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedReadRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<ServedReadRowsOp>);
#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedReadRows")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("rows"),
                        Guarded<ServedReadRowsOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
