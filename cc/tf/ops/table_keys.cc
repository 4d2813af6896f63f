// Keyed tables are asked and changed, beside lookups and updates.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("GroupEmbedding>FindKeys")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("frequencies: int64")
    .Output("versions: int64")
    .Output("tiers: int32")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < 3; ++i) context->set_output(i, context->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
What a table keeps of keys beside their rows.

keys: of any shape.
frequencies: how often each was trained; 0: it has no row.
versions: the step in which it was trained last; -1: it has no row, or no step was given.
tiers: of its storage, in which its row lies, 0 the fastest; -1: it has no row.
)doc");

REGISTER_OP("GroupEmbedding>ExportTable")
    .Input("table: resource")
    .Output("keys: int64")
    .Output("values: dtype")
    .Output("versions: int64")
    .Output("frequencies: int64")
    .Attr("dtype: {float, half, bfloat16}")
    .Attr("dim: int >= 1")
    .Attr("is_unsigned: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      int64_t dim;
      TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
      const auto num_keys = context->UnknownDim();
      for (const int i : {0, 2, 3}) context->set_output(i, context->Vector(num_keys));
      context->set_output(1, context->Matrix(num_keys, context->MakeDim(dim)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
All keys that have a row, ascending, and their rows. Training waits meanwhile.

values: [keys, dim].
versions, frequencies: as of FindKeys.
is_unsigned: keys are in the order of unsigned numbers.
)doc");

REGISTER_OP("GroupEmbedding>InsertKeys")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("values: dtype")
    .Input("versions: int64")
    .Input("frequencies: int64")
    .Attr("dtype: {float, half, bfloat16}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Gives keys rows of these values, whatever the filter says. Slots of the rows start anew.

keys: [num_keys]; of one that comes twice the last row counts.
values: [num_keys, dim].
versions, frequencies: [num_keys], or [0]: keys that had a row keep theirs.
)doc");

REGISTER_OP("GroupEmbedding>EraseKeys")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("num_erased: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Forgets keys: their rows, slots and counts.

keys: of any shape; those without a row may be among them.
num_erased: how many had a row.
)doc");

REGISTER_OP("GroupEmbedding>EvictKeys")
    .Input("table: resource")
    .Input("step: int64")
    .Output("num_erased: int64")
    .Attr("kind: string")
    .Attr("steps_to_live: int = 0")
    .Attr("l2_weight: float = 0")
    .Attr("minutes_to_live: int = 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle step;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 0, &step));
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Forgets keys that are not worth their memory.

step: a scalar, the step of now; for 'global_step'.
num_erased: how many were forgotten.
kind: 'global_step': keys not trained for more than `steps_to_live` steps, of those whose training
  had a step. 'l2_weight': keys whose row has a sum of squares, halved, below `l2_weight`. 'time':
  keys not trained for more than `minutes_to_live` minutes. Several, joined by '+': keys that any of
  them names.
)doc");

REGISTER_OP("GroupEmbedding>BudgetCounts")
    .Input("table: resource")
    .Output("max_keys: int64")
    .Output("evicted: int64")
    .Output("without_place: int64")
    .Output("missed: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < 4; ++i) context->set_output(i, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
What a table has done to keep its budget. All are 0 for a table without one.

max_keys: how many keys it may have now.
evicted: keys that were evicted for new ones.
without_place: how often a new key found no place.
missed: evicted keys that TakeEvicted was too late for.
)doc");

REGISTER_OP("GroupEmbedding>TakeEvicted")
    .Input("table: resource")
    .Output("keys: int64")
    .Output("values: dtype")
    .Output("versions: int64")
    .Output("frequencies: int64")
    .Attr("dtype: {float, half, bfloat16}")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      int dim;
      TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
      const auto keys = context->Vector(InferenceContext::kUnknownDim);
      for (const int i : {0, 2, 3}) context->set_output(i, keys);
      context->set_output(1, context->Matrix(InferenceContext::kUnknownDim, dim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The keys that a table with a budget has evicted since the last call.

keys: [n], in any order.
values: [n, dim], or [0, dim] unless the table hands out rows.
versions, frequencies: [n], as they were.
)doc");

REGISTER_OP("GroupEmbedding>SetScores")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("scores: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Sets by which score keys are evicted, the lowest first. Keys without a row are left out.

keys: of any shape; of one that comes several times the highest score counts.
scores: of the shape of keys.
)doc");

REGISTER_OP("GroupEmbedding>SetTime")
    .Input("table: resource")
    .Input("minute: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Sets the time of the table's next batches.

minute: a scalar, minutes since 1970.
)doc");

REGISTER_OP("GroupEmbedding>WriteAverages")
    .Input("table: resource")
    .Input("momentum: float")
    .Input("step: int64")
    .Attr("average_slot: string")
    .Attr("step_slot: string")
    .Attr("swap: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle scalar;
      for (const int i : {1, 2}) {
        TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &scalar));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gives all rows the values of their moving averages, which the rules 'catch_up_average' and
'move_average' keep in two slots. Rows without an average stay as they are.

momentum: a scalar, of the averages.
step: a scalar, the number of steps made, at which averages are taken.
average_slot, step_slot: the names of the slots. A table that lacks them has no averages.
swap: the averages take the former values of the rows, so that the same op gives them back.
)doc");

REGISTER_OP("GroupEmbedding>TableStats")
    .Input("table: resource")
    .Output("num_keys: int64")
    .Output("memory_bytes: int64")
    .Output("load_factor: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < 3; ++i) context->set_output(i, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
How large a table is.

num_keys: that have a row.
memory_bytes: of rows, slots, what is kept of each, and the index; not on disk.
load_factor: of the index.
)doc");

}  // namespace group_embedding
