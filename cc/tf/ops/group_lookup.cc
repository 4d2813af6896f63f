// Lookup and combine of a group, and its backward pass, as TensorFlow ops.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/group_attrs.h"
#include "tf/ops/group_outputs.h"

namespace group_embedding {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status GroupLookupShape(InferenceContext* context) {
  int num_outputs;
  return SetGroupOutputs(context, /*num_others=*/0, &num_outputs);
}

absl::Status GroupLookupGradShape(InferenceContext* context) {
  std::vector<int32_t> dims;
  TF_RETURN_IF_ERROR(GetDims(context, &dims));
  const int num_tables = static_cast<int>(dims.size());
  TF_RETURN_IF_ERROR(CheckNumOutputs(context, 2 * int64_t{num_tables} + 1));
  for (int t = 0; t < num_tables; ++t) {
    const auto num_unique = context->UnknownDim();
    context->set_output(t, context->Vector(num_unique));
    context->set_output(num_tables + t, context->Matrix(num_unique, context->MakeDim(dims[t])));
  }
  context->set_output(2 * num_tables, context->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

}  // namespace

// Handles are inputs of listed types: an input that is declared a resource makes an op stateful,
// and functions run stateful ops even where nobody uses what they make.
REGISTER_OP("GroupEmbedding>GroupLookup")
    .Input("tables: table_types")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("keyed_tables: keyed_types")
    .Output("outputs: num_outputs * dtype")
    .TABLES_ATTRS.GROUP_ATTRS.Attr("num_outputs: int >= 1")
    .Attr("constant_weights: bool = false")
    .SetShapeFn(GroupLookupShape)
    .Doc(R"doc(
Looks up and combines the rows of many features in one pass.

tables: variables (handles) or tensors, each [num_rows, dim].
batch: made by GroupIds; for keyed tables, by LocateRows of that.
sizes: made by GroupIds; host memory.
keyed_tables: the tables that are found by key.
outputs: one [num_samples, dim] per feature, or, with `concat`, one [num_samples, sum of dims].
table_of_feature: index into `tables` of each feature.
dims: the dim of each table.
max_norms: per table, the L2 norm that its rows are scaled down to; 0: as they are.
weighted: whether `batch` has weights.
constant_weights: whether these have no gradient.
prune_negative: leave negative ids out; otherwise they are outside the table.
invalid_ids: what an id outside its table does: raise an error, or be ignored: read as
  a row of zeros.
keyed: the index, among `tables`, of each of keyed_tables. What stands there is not read: it is the
  variable through which autodiff sees the table.
)doc");

REGISTER_OP("GroupEmbedding>GroupLookupGrad")
    .Input("tables: table_types")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("grads: num_grads * dtype")
    .Input("keyed_tables: keyed_types")
    .Output("indices: num_tables * int64")
    .Output("values: num_tables * dtype")
    .Output("weight_grad: float")
    .TABLES_ATTRS.GROUP_ATTRS.Attr("num_grads: int >= 1")
    .Attr("grad_features: list(int)")
    .Attr("num_tables: int >= 1")
    .SetShapeFn(GroupLookupGradShape)
    .Doc(R"doc(
The gradient of GroupLookup.

grads: of the outputs that have one.
grad_features: the index of the output that each of `grads` belongs to. Ids of other features
  have no gradient.
indices: per table, the looked-up rows, unique and ascending.
values: per table, [number of those rows, dim].
weight_grad: [ids of the batch] if weighted, else empty.
)doc");

}  // namespace group_embedding
