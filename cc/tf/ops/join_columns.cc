// Rows whose columns come from several ranks, as TensorFlow ops.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("GroupEmbedding>JoinColumns")
    .Input("parts: num_tables * float")
    .Output("rows: num_tables * float")
    .Output("num_rows: int64")
    .Attr("num_tables: int >= 1")
    .Attr("num_ranks: int >= 1")
    .SetShapeFn([](InferenceContext* context) {
      int64_t num_ranks;
      TF_RETURN_IF_ERROR(context->GetAttr("num_ranks", &num_ranks));
      for (int t = 0; t < context->num_inputs(); ++t) {
        ShapeHandle parts;
        DimensionHandle dim;
        TF_RETURN_IF_ERROR(context->WithRank(context->input(t), 2, &parts));
        TF_RETURN_IF_ERROR(context->Multiply(context->Dim(parts, 1), num_ranks, &dim));
        context->set_output(t, context->Matrix(InferenceContext::kUnknownDim, dim));
      }
      context->set_output(context->num_inputs(), context->Vector(context->num_inputs()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Joins the parts of rows that ranks sent: see cc/exchange/host/join_columns.h.

parts: per table, [num_ranks * rows, dim / num_ranks], rank after rank.
rows: per table, [rows, dim].
num_rows: of each table.
)doc");

REGISTER_OP("GroupEmbedding>SplitColumns")
    .Input("rows: num_tables * float")
    .Input("indices: num_tables * int64")
    .Input("num_rows: int64")
    .Output("parts: num_tables * float")
    .Output("part_indices: num_tables * int64")
    .Attr("num_tables: int >= 1")
    .Attr("num_ranks: int >= 1")
    .SetShapeFn([](InferenceContext* context) {
      int64_t num_tables, num_ranks;
      TF_RETURN_IF_ERROR(context->GetAttr("num_tables", &num_tables));
      TF_RETURN_IF_ERROR(context->GetAttr("num_ranks", &num_ranks));
      ShapeHandle num_rows;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2 * num_tables), 1, &num_rows));
      for (int t = 0; t < num_tables; ++t) {
        ShapeHandle rows, indices;
        DimensionHandle num_parts, part_dim;
        TF_RETURN_IF_ERROR(context->WithRank(context->input(t), 2, &rows));
        TF_RETURN_IF_ERROR(context->WithRank(context->input(num_tables + t), 1, &indices));
        TF_RETURN_IF_ERROR(context->Multiply(context->Dim(rows, 0), num_ranks, &num_parts));
        TF_RETURN_IF_ERROR(context->Divide(context->Dim(rows, 1), num_ranks,
                                           /*evenly_divisible=*/true, &part_dim));
        context->set_output(t, context->Matrix(num_parts, part_dim));
        context->set_output(num_tables + t, context->Vector(num_parts));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
The inverse of JoinColumns for some of the rows.

rows: per table, [n, dim].
indices: per table, [n], ascending: which of its rows these are.
num_rows: of each table, as JoinColumns returned it.
parts: per table, [num_ranks * n, dim / num_ranks], rank after rank.
part_indices: per table, [num_ranks * n], ascending: which of the parts these are.
)doc");

}  // namespace group_embedding
