// Lookup of a group whose tables' owners combine rows, over ranks with a GPU each, and the way back
// of its gradients, as TensorFlow ops.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/group_attrs.h"
#include "tf/ops/group_outputs.h"

namespace group_embedding {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status SumsGroupLookupShape(InferenceContext* context) {
  int at = 0;
  TF_RETURN_IF_ERROR(SetGroupOutputs(context, /*num_others=*/3, &at));
  context->set_output(at, context->Vector(InferenceContext::kUnknownDim));
  context->set_output(at + 1, context->Matrix(InferenceContext::kUnknownDim, 2));
  context->set_output(at + 2, context->Scalar());
  // An integer dtype, for which autodiff computes no gradient.
  context->set_output_handle_shapes_and_types(at + 2, {{context->Scalar(), tensorflow::DT_INT32}});
  return absl::OkStatus();
}

absl::Status SendSumsGradientsShape(InferenceContext* context) {
  for (int p = 0; p < context->num_outputs(); ++p) {
    context->set_output(
        p, context->Matrix(InferenceContext::kUnknownDim, InferenceContext::kUnknownDim));
  }
  return absl::OkStatus();
}

absl::Status ReturnWeightGradientsShape(InferenceContext* context) {
  context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("GroupEmbedding>SumsGroupLookup")
    .Input("tables: table_types")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("order: resource")
    .Output("outputs: num_outputs * dtype")
    .Output("gathered: float")
    .Output("gathered_sizes: int64")
    .Output("state: variant")
    .Attr("num_outputs: int >= 1")
    .Attr("owners: list(int)")
    .TABLES_ATTRS.GROUP_ATTRS.EXCHANGE_ATTRS.SetIsStateful()
    .SetShapeFn(SumsGroupLookupShape)
    .Doc(R"doc(
GroupLookup of tables whose owners get the ids of all ranks, combine their rows, and send one sum a
sample. All ranks run it, together; a bad id on any is an error on all.

tables: this rank's part of each: all rows, or none; some rows; or as many columns of all rows.
batch, sizes, outputs and other attributes: as of GroupLookup, dims those of whole tables.
order: as of ShardedGroupLookup.
gathered, gathered_sizes: the batch of what this rank looks up for all, with a feature for each of
  each rank, rank after rank; without ids where it has no part of the table. Sizes in host memory.
state: what the way back needs of this one.
num_rows: of each whole table.
owners: of each table: the rank that has all of it; -1: each rank has as many columns; -2: row r is
  row r / num_ranks of rank r % num_ranks.
gradient_scale, description, comm_dtype, nccl_id, rank, num_ranks, timeout_seconds, use_peer_memory:
  as of ShardedGroupLookup, of sums and their gradients.
)doc");

REGISTER_OP("GroupEmbedding>SendSumsGradients")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("grads: num_grads * dtype")
    .Input("state: variant")
    .Input("order: resource")
    .Output("sums_grads: num_parts * dtype")
    .Attr("num_grads: int >= 1")
    .Attr("grad_features: list(int)")
    .Attr("num_parts: int >= 1")
    .Attr("dtype: {float, half, bfloat16}")
    .GROUP_ATTRS.SetIsStateful()
    .SetShapeFn(SendSumsGradientsShape)
    .Doc(R"doc(
Sends the gradients of a lookup's outputs to the owners of its tables. All ranks run it.

batch, sizes, grads, grad_features and other attributes: as of GroupLookupGrad, those of the lookup.
state: of SumsGroupLookup.
order: as of ShardedGroupLookup.
sums_grads: for each feature of `gathered`, [its samples, columns of this rank's part].
num_parts: ranks x features.
)doc");

REGISTER_OP("GroupEmbedding>ReturnWeightGradients")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("gathered_grad: float")
    .Input("state: variant")
    .Input("order: resource")
    .Output("weight_grad: float")
    .Attr("dtype: {float, half, bfloat16}")
    .GROUP_ATTRS.SetIsStateful()
    .SetShapeFn(ReturnWeightGradientsShape)
    .Doc(R"doc(
Sends the gradients of weights to the ranks that have them. All ranks run it, after
SendSumsGradients.

batch, sizes and other attributes: as of GroupLookupGrad, those of the lookup.
gathered_grad: [ids of `gathered`], what GroupLookupGrad has as its weight_grad.
state: of SumsGroupLookup.
order: as of ShardedGroupLookup.
weight_grad: [ids of the batch].
)doc");

}  // namespace group_embedding
