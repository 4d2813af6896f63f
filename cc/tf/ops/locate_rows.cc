// Keys become row numbers, as a TensorFlow op.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("GroupEmbedding>LocateRows")
    .Input("tables: num_tables * resource")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("steps: int64")
    .Input("times: int64")
    .Output("located: float")
    .Attr("num_tables: int >= 1")
    .Attr("table_of_feature: list(int)")
    .Attr("learning: list(bool)")
    .Attr("weighted: bool = false")
    .Attr("training: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Replaces keys of a batch by the numbers of their rows.

tables: keyed tables, from EmbeddingTableHandleOp.
batch: made by GroupIds.
sizes: made by GroupIds; host memory.
steps: [num_tables], the step in which keys of each table are trained; -1: none. Host memory.
times: [ids of the batch], how often each came, or [0]: once.
located: the batch with row numbers for keys; features of other tables stay as they are. Rows in it
  are given to no other keys while it is held.
table_of_feature: per feature, the index into `tables`, or -1: its table is none of them.
learning: per table, whether it is trained where its lookups are.
weighted: whether `batch` has weights.
training: false: a key without a row gets that of what it would start as, nothing is inserted or
  counted. True: keys of learning tables are counted, and those that are admitted get a row. The
  gradient function of GroupLookup sets it: a key gets a row only when it is trained.
)doc");

}  // namespace group_embedding
