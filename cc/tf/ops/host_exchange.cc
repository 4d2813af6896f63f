// What ranks exchange between the memory of their hosts, as TensorFlow ops.
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/group_attrs.h"
#include "tf/ops/group_outputs.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("GroupEmbedding>HostAlltoall")
    .Input("tensor: T")
    .Input("splits: int32")
    .Output("received: T")
    .Output("received_splits: int32")
    .Attr("T: type")
    .Attr("exchange: int")
    .Attr("description: string = ''")
    .SetIsStateful()  // other ranks wait for it, be its inputs constant or its outputs known
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle tensor, splits, received;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &tensor));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &splits));
      TF_RETURN_IF_ERROR(context->ReplaceDim(tensor, 0, context->UnknownDim(), &received));
      context->set_output(0, received);
      context->set_output(1, splits);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sends slices of a tensor along its first axis to all ranks: see
cc/exchange/host/host_exchange.h. Calls are matched by the name of the node.

tensor: [n, ...].
splits: [num_ranks], how much of the first axis goes to each rank, rank 0 first.
received: the received data, ordered by sending rank.
received_splits: [num_ranks], how much came from each.
exchange: the number of the exchange in this process.
description: what the call does, as a text; the same on all ranks, else the call ends with an error
that says in what two differ.
)doc");

REGISTER_OP("GroupEmbedding>HostAllgather")
    .Input("tensor: T")
    .Output("gathered: T")
    .Attr("T: type")
    .Attr("exchange: int")
    .Attr("description: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle tensor, gathered;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &tensor));
      TF_RETURN_IF_ERROR(context->ReplaceDim(tensor, 0, context->UnknownDim(), &gathered));
      context->set_output(0, gathered);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gathers a tensor of each rank on all ranks, in pieces where it is large.

tensor: [n, ...]; n may differ between ranks.
gathered: the ranks' tensors along the first axis, that of rank 0 first.
exchange, description: as of HostAlltoall.
)doc");

REGISTER_OP("GroupEmbedding>MarkCall")
    .Input("tensor: T")
    .Output("same: T")
    .Attr("T: type")
    .Attr("begins: bool")
    .Attr("key: string")
    .Attr("description: string = ''")
    .Attr("ends_with_step: bool = true")
    .Attr("scope: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Says that this process waits in a collective call of another library from here on, or no longer: one
stands before the call, one behind it. The watch over ranks compares in which calls the ranks wait.

begins: whether the call begins here; false: it has ended.
key: what all ranks name the call.
description: what the call does, for a person.
ends_with_step: whether the call ends when its step is cancelled; false: of an eager op, whose step
  ends before the call does.
scope: the name scope of this op in its graph. What stands before it in the op's name is the caller
  of the function that has the op, and distinguishes calls in different functions.
)doc");

REGISTER_OP("GroupEmbedding>HostExchangeRows")
    .Input("rows: dtypes")
    .Input("indices: num_indices * int64")
    .Input("sent: int64")
    .Input("received: int64")
    .Output("received_rows: out_dtypes")
    .Output("received_indices: num_indices * int64")
    .Attr("dtypes: list({float, half, bfloat16}) >= 1")
    .Attr("out_dtypes: list({float, half, bfloat16}) >= 1")
    .Attr("wire: list({float, half, bfloat16}) >= 1")
    .Attr("num_indices: int >= 0 = 0")
    .Attr("scale: float = 1")
    .Attr("gradient_scale: float = 1")
    .Attr("exchange: int")
    .Attr("description: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      std::vector<tensorflow::DataType> dtypes;
      int64_t num_indices;
      TF_RETURN_IF_ERROR(context->GetAttr("dtypes", &dtypes));
      TF_RETURN_IF_ERROR(context->GetAttr("num_indices", &num_indices));
      const int64_t num_tables = static_cast<int64_t>(dtypes.size());
      TF_RETURN_IF_ERROR(CheckNumOutputs(context, num_indices > 0 ? 2 * num_tables : num_tables));
      for (int64_t t = 0; t < num_tables; ++t) {
        ShapeHandle rows;
        TF_RETURN_IF_ERROR(context->WithRank(context->input(t), 2, &rows));
        const auto num_rows = context->UnknownDim();
        context->set_output(t, context->Matrix(num_rows, context->Dim(rows, 1)));
        if (num_indices > 0) context->set_output(num_tables + t, context->Vector(num_rows));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sends rows of many tables to all ranks: PackRows, an all-to-all and UnpackRows in one,
in which what a rank has for itself is neither packed nor sent.

rows: per table, [rows, dim]: the rows for rank 0 first.
indices: none, or per table [rows], ascending: which of its rows these are; others are absent.
sent, received: [num_ranks, num_tables], rows of each table for each rank, and from it.
received_rows: per table, those that are present, of rank 0 first.
received_indices: per table, which these are; or none: all must be present.
wire: per table, the type that its rows travel in.
scale: what all rows are multiplied by.
gradient_scale: what the gradients of all rows are multiplied by on their way back.
exchange, description: as of HostAlltoall.
)doc");

REGISTER_OP("GroupEmbedding>HostLookUpRows")
    .Input("tables: table_types")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("keyed_tables: keyed_types")
    .Input("ahead: num_ahead * float")
    .Input("sent: int64")
    .Input("received: int64")
    .Output("received_rows: out_dtypes")
    .TABLES_ATTRS.GROUP_ATTRS.Attr("out_dtypes: list({float, half, bfloat16}) >= 1")
    .Attr("num_ahead: int >= 0 = 0")
    .Attr("wire: list({float, half, bfloat16}) >= 1")
    .Attr("num_indices: int = 0")
    .Attr("gradient_scale: float = 1")
    .Attr("exchange: int")
    .Attr("description: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      std::vector<int32_t> dims;
      TF_RETURN_IF_ERROR(GetDims(context, &dims));
      TF_RETURN_IF_ERROR(CheckNumOutputs(context, static_cast<int64_t>(dims.size())));
      for (size_t t = 0; t < dims.size(); ++t) {
        context->set_output(t, context->Matrix(InferenceContext::kUnknownDim, dims[t]));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
GroupLookup of the rows that all ranks ask this one for, and HostExchangeRows of these,
in one: they go from the tables to where they are sent, or read by this rank itself.

batch: a feature for each table, with the ids that rank 0 asks for first, one of each sample.
ahead: none, or the outputs of HostRowsAhead of the same batch: then only rows travel that have
  changed since.
Inputs and attributes of the lookup are those of GroupLookup, others those of HostExchangeRows.
)doc");

REGISTER_OP("GroupEmbedding>HostRowsAhead")
    .Input("tables: table_types")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("keyed_tables: keyed_types")
    .Input("sent: int64")
    .Input("received: int64")
    .Output("sent_rows: float")
    .Output("received_rows: float")
    .TABLES_ATTRS.GROUP_ATTRS.Attr("wire: list({float, half, bfloat16}) >= 1")
    .Attr("num_indices: int = 0")
    .Attr("exchange: int")
    .Attr("description: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      context->set_output(1, context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sends the rows of a batch as they are now, before the HostLookUpRows that reads them: see
cc/exchange/host/changed_rows.h. What a rank has for itself is left out.

sent_rows, received_rows: words of 32 bits, whatever the type says, in the form of PackRows.
Inputs and attributes are those of HostLookUpRows.
)doc");

}  // namespace group_embedding
