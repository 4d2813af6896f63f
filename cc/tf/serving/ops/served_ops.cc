// Tables of a model that answers requests. An opened SavedModel has these ops in the place of those
// that train (tf/serving/session/rewrite_graph.h): no program makes them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/group_attrs.h"
#include "tf/ops/group_ids.h"
#include "tf/ops/group_outputs.h"

namespace group_embedding {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status ServedLookupShape(InferenceContext* context) {
  int num_outputs;
  return SetGroupOutputs(context, /*num_others=*/0, &num_outputs);
}

absl::Status ServedReadRowsShape(InferenceContext* context) {
  int64_t dim;
  TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(context->Concatenate(context->input(1), context->Vector(dim), &rows));
  context->set_output(0, rows);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("GroupEmbedding>ServedTable")
    .Output("handle: resource")
    .Attr("model: int")
    .Attr("slot: int >= 0")
    .Attr("table: string")
    .Attr("table_name: string")
    .Attr("keyed: bool = true")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Makes a handle of a table of a served model, as one of the model's two sessions sees it.

model: the number of the served model.
slot: the session.
table: the name of the table's resource in the SavedModel; no other table of the model has it.
table_name: the trainer's name of the table.
keyed: false: the table is a variable [rows, dim].
)doc");

REGISTER_OP("GroupEmbedding>InitializeServedTable")
    .Input("table: resource")
    .Input("matrix: dtype")
    .Attr("dtype: {float, half, bfloat16}")
    .Attr("dim: int >= 1")
    .Attr("no_row_value: float = 0")
    .Attr("admission: {'all', 'counter', 'bloom'} = 'all'")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Makes a keyed table, empty, unless it is made already.

matrix: [rows, dim], the initial values of keys, or [0, dim].
dim, no_row_value, admission: as of InitializeEmbeddingTable.
)doc");

REGISTER_OP("GroupEmbedding>RestoreServedTable")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("manifest: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Reads the rows of a keyed table from its files. Slots and counts are left out.

prefix, manifest: as of RestoreTable.
)doc");

REGISTER_OP("GroupEmbedding>AssignServedTable")
    .Input("table: resource")
    .Input("value: dtype")
    .Attr("dtype: {float, half, bfloat16, int8, uint8}")
    .Attr("trained_dtype: {float, half, bfloat16}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Makes a table by row number with the rows of a variable.

value: [rows, dim]; or rows that were quantised before, of which the type says the format: bfloat16
  where the variable was trained in another type, int8 for the format int8 and uint8 for fp8, both
  [rows, dim + 4].
trained_dtype: of the variable.
)doc");

REGISTER_OP("GroupEmbedding>ServedBatch")
    .Input("batch: float")
    .Output("located: float")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
The batch itself, in the place of LocateRows: ServedLookup finds the rows of keys.
)doc");

REGISTER_OP("GroupEmbedding>ServedIds")
    .Output("batch: float")
    .Output("sizes: int64")
    .GROUP_IDS_ATTRS.Attr("inputs: list(int)")
    .Attr("signatures: list(string) >= 1")
    .SetIsStateful()
    .SetShapeFn(GroupIdsShape)
    .Doc(R"doc(
GroupIds of inputs of the request, which lie where its sender has them: the graph passes none.

batch, sizes: as of GroupIds.
inputs: positions of GroupIds' inputs among those of the request's signature, in the order of names.
signatures: whose requests have ids at these positions.
)doc");

REGISTER_OP("GroupEmbedding>ServedLookup")
    .Input("tables: table_types")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("keyed_tables: keyed_types")
    .Output("outputs: num_outputs * dtype")
    .TABLES_ATTRS.GROUP_ATTRS.Attr("num_outputs: int >= 1")
    .SetShapeFn(ServedLookupShape)
    .Doc(R"doc(
GroupLookup for tables of a served model, which finds the rows of keys itself.

tables, keyed_tables: as of GroupLookup; handles may be those of ServedTable.
batch: made by GroupIds; keys are not located.
)doc");

REGISTER_OP("GroupEmbedding>ServedReadRows")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("rows: dtype")
    .Attr("dtype: {float, half, bfloat16}")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn(ServedReadRowsShape)
    .Doc(R"doc(
ReadRows for a table of a served model.

keys: of any shape.
rows: keys.shape + [dim].
)doc");

}  // namespace group_embedding
