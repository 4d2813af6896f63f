// Update rules applied to tables in place, as TensorFlow ops. Each exists twice, since variables
// do: as resources, and as references in graphs of TensorFlow 1.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/group_attrs.h"

namespace group_embedding {

#define RULE_ATTRS                                            \
  Attr("num_tables: int >= 0")                                \
      .Attr("num_keyed: int >= 0 = 0")                        \
      .Attr("num_slots: int >= 0")                            \
      .Attr("dtype: {float, half, bfloat16}")                 \
      .Attr("slot_dtype: {float, half, bfloat16} = DT_FLOAT") \
      .Attr("rule: string")                                   \
      .Attr("rule_slots: list(int)")                          \
      .Attr("keyed_slot_names: list(string) = []")            \
      .Attr("keyed_slot_starts: list(float) = []")            \
      .Attr("stochastic_rounding: bool = false")              \
      .Attr("stochastic_slots: bool = false")

#define UPDATE_ATTRS                     \
  Attr("num_grads: int >= 1")            \
      .Attr("grad_features: list(int)")  \
      .Attr("updated_tables: list(int)") \
      .Attr("updated_keyed: list(int) = []")

constexpr char kGroupUpdateDoc[] = R"doc(
The backward pass of GroupLookup and the update of its tables, in one.

tables: the variables that are written, each [num_rows, dim].
slots: the slots of the first table, then those of the next, each of its table's shape, or
  [num_rows, 1] if the rule has one number per row.
batch: as of GroupLookup.
sizes: as of GroupLookup; host memory.
grads: gradients of the outputs of GroupLookup that have one.
hyper: the numbers that steer the rule, in the order of kHyperNames.
keyed_tables: tables that are found by key and written. They keep their slots themselves, and their
  first rows, which are no key's, stay as they are.
rule: its name in cc/optimizer/rules.h.
rule_slots: which of the rule's slots the tables have.
keyed_slot_names, keyed_slot_starts: of each of rule_slots, its name in keyed tables, and what it
  starts as where a table has none of that name yet.
stochastic_rounding: round 16-bit rows up or down at random, the nearer the likelier.
stochastic_slots: the same of slots in bfloat16.
slot_dtype: of slots: float, that of the rows or, of the rules 'adagrad', 'rowwise_adagrad', 'adam' and
  'rowwise_adam', bfloat16.
grad_features: the index of the output that each of `grads` belongs to.
updated_tables, updated_keyed: the index, among the tables of GroupLookup, of each of `tables` and
  of each of keyed_tables.
)doc";

constexpr char kGroupUpdateSlicesDoc[] = R"doc(
Applies a rule to gradients of some rows of tables.

tables, slots, hyper, keyed_tables and attributes: as of GroupUpdate.
indices: the rows of all gradients, those of the first table first; gradients of one row are added
  in their order.
values: per table, the keyed ones last, [its part of `indices`, dim].
)doc";

REGISTER_OP("GroupEmbedding>GroupUpdate")
    .Input("tables: num_tables * resource")
    .Input("slots: num_slots * resource")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("grads: num_grads * dtype")
    .Input("hyper: float")
    .Input("keyed_tables: num_keyed * resource")
    .RULE_ATTRS.UPDATE_ATTRS.GROUP_ATTRS.SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(kGroupUpdateDoc);

REGISTER_OP("GroupEmbedding>GroupUpdateRef")
    .Input("tables: Ref(num_tables * dtype)")
    .Input("slots: Ref(num_slots * slot_dtype)")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("grads: num_grads * dtype")
    .Input("hyper: float")
    .Input("keyed_tables: num_keyed * resource")
    .RULE_ATTRS.UPDATE_ATTRS.GROUP_ATTRS.SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(kGroupUpdateDoc);

REGISTER_OP("GroupEmbedding>GroupUpdateSlices")
    .Input("tables: num_tables * resource")
    .Input("slots: num_slots * resource")
    .Input("indices: int64")
    .Input("values: num_values * dtype")
    .Input("hyper: float")
    .Input("keyed_tables: num_keyed * resource")
    .RULE_ATTRS.Attr("num_values: int >= 1")
    .Attr("table_names: list(string)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(kGroupUpdateSlicesDoc);

REGISTER_OP("GroupEmbedding>GroupUpdateSlicesRef")
    .Input("tables: Ref(num_tables * dtype)")
    .Input("slots: Ref(num_slots * slot_dtype)")
    .Input("indices: int64")
    .Input("values: num_values * dtype")
    .Input("hyper: float")
    .Input("keyed_tables: num_keyed * resource")
    .RULE_ATTRS.Attr("num_values: int >= 1")
    .Attr("table_names: list(string)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(kGroupUpdateSlicesDoc);

#undef RULE_ATTRS
#undef UPDATE_ATTRS

}  // namespace group_embedding
