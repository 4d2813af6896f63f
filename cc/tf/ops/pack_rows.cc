// Packing of the rows of many tables for an all-to-all, as TensorFlow ops.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("PackRows")
    .Input("matrices: num_tables * dtype")
    .Input("counts: int64")
    .Output("packed: dtype")
    .Output("splits: int32")
    .Attr("dtype: {float, half, bfloat16}")
    .Attr("num_tables: int >= 1")
    .SetShapeFn([](InferenceContext* context) {
      const auto counts = context->input(context->num_inputs() - 1);
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      context->set_output(1, context->Vector(context->Dim(counts, 0)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Brings the rows of many tables into one buffer, part by part for each rank.

matrices: per table, [rows, dim]: the rows for rank 0 first.
counts: [num_ranks, num_tables], rows of each table for each rank.
packed: rank after rank, within it table after table.
splits: [num_ranks], the elements for each rank.
)doc");

REGISTER_OP("UnpackRows")
    .Input("packed: dtype")
    .Input("counts: int64")
    .Output("matrices: num_tables * dtype")
    .Attr("dtype: {float, half, bfloat16}")
    .Attr("num_tables: int >= 1")
    .Attr("dims: list(int)")
    .SetShapeFn([](InferenceContext* context) {
      std::vector<int32_t> dims;
      TF_RETURN_IF_ERROR(context->GetAttr("dims", &dims));
      for (size_t t = 0; t < dims.size(); ++t) {
        context->set_output(t, context->Matrix(InferenceContext::kUnknownDim, dims[t]));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
The inverse of PackRows.
)doc");

}  // namespace group_embedding
