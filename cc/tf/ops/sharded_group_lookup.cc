// Lookup of a group whose tables are spread over ranks with a GPU each, and the way back of its
// gradients, as TensorFlow ops.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/group_attrs.h"
#include "tf/ops/group_outputs.h"

namespace group_embedding {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status ShardedGroupLookupShape(InferenceContext* context) {
  int state = 0;
  TF_RETURN_IF_ERROR(SetGroupOutputs(context, /*num_others=*/1, &state));
  context->set_output(state, context->Scalar());
  // An integer dtype, for which autodiff computes no gradient.
  context->set_output_handle_shapes_and_types(state, {{context->Scalar(), tensorflow::DT_INT32}});
  return absl::OkStatus();
}

absl::Status SendGroupGradientsShape(InferenceContext* context) {
  std::vector<int32_t> dims;
  int num_parts;
  TF_RETURN_IF_ERROR(GetDims(context, &dims));
  TF_RETURN_IF_ERROR(context->GetAttr("num_parts", &num_parts));
  TF_RETURN_IF_ERROR(CheckNumOutputs(context, 3 + int64_t{num_parts}));
  if (dims.empty() || num_parts % static_cast<int>(dims.size()) != 0) {
    return absl::InvalidArgumentError("num_parts: expected a multiple of the number of tables");
  }
  context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
  context->set_output(1, context->Matrix(num_parts, 2));
  for (int p = 0; p < num_parts; ++p) {
    context->set_output(2 + p,
                        context->Matrix(InferenceContext::kUnknownDim, dims[p % dims.size()]));
  }
  context->set_output(2 + num_parts, context->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("GroupEmbedding>ShardedGroupLookup")
    .Input("tables: table_types")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("keyed_tables: keyed_types")
    .Input("steps: int64")
    .Input("order: resource")
    .Output("outputs: num_outputs * dtype")
    .Output("state: variant")
    .Attr("num_outputs: int >= 1")
    .Attr("learning: list(bool) = []")
    .Attr("training: bool = false")
    .TABLES_ATTRS.GROUP_ATTRS.EXCHANGE_ATTRS.SetIsStateful()
    .SetShapeFn(ShardedGroupLookupShape)
    .Doc(R"doc(
GroupLookup of tables of which each rank has some rows: row r is row r / num_ranks of rank
r % num_ranks. All ranks run it, together; a bad id on any is an error on all.

tables, batch, sizes, keyed_tables, keyed, outputs and other attributes: as of GroupLookup. This
  rank's rows. Keyed tables are on the ranks that the hashes of keys say (owner.h), and have keys in
  the batch, which has no weights then.
steps: [keyed tables], the step in which keys of each are trained; -1: none. Host memory.
learning: per keyed table, and training: as of LocateRows.
order: read by all ops that exchange, so that functions keep them in order.
state: what the way back needs of this one.
num_rows: of each whole table; of keyed ones anything.
gradient_scale: what the gradients that ranks send are multiplied by before they are added.
description: what the lookup is, the same on all ranks; else an error says in what they differ.
comm_dtype: of rows and gradients on their way between ranks.
nccl_id, rank, num_ranks: the communicator, made when the first op of this id runs.
timeout_seconds: how long other ranks are waited for.
use_peer_memory: where the GPUs reach each other's memory, rows and gradients are written there.
)doc");

REGISTER_OP("GroupEmbedding>SendGroupGradients")
    .Input("tables: table_types")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("grads: num_grads * dtype")
    .Input("state: variant")
    .Input("keyed_tables: keyed_types")
    .Input("order: resource")
    .Output("requests: float")
    .Output("request_sizes: int64")
    .Output("request_grads: num_parts * dtype")
    .Output("weight_grad: float")
    .Attr("num_grads: int >= 1")
    .Attr("grad_features: list(int)")
    .Attr("num_parts: int >= 1")
    .Attr("is_other_batch: bool")
    .TABLES_ATTRS.GROUP_ATTRS.SetIsStateful()
    .SetShapeFn(SendGroupGradientsShape)
    .Doc(R"doc(
Sends the gradient of each unique row of a batch to the rank that has the row. All ranks run it.

tables, batch, sizes, grads, grad_features, keyed_tables, keyed and other attributes: as of
  GroupLookupGrad, but that the batch has keys.
state: of ShardedGroupLookup.
order: as of ShardedGroupLookup.
requests, request_sizes: the batch of the rows of this rank that gradients came for, with a feature
  for each rank's part of each table, rank after rank; an id a sample, weighted by gradient_scale.
request_grads: of each of these features, [its samples, dim].
weight_grad: [ids of the batch] if weighted, else empty.
num_parts: ranks x tables.
is_other_batch: the batch, or the features that have a gradient, are not those of the lookup: ids
  are sent again.
)doc");

}  // namespace group_embedding
