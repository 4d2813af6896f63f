// Rows of the next batch on their way to the fastest memory, as a TensorFlow op.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;

#define PREFETCH_ROWS(name)                                                \
  REGISTER_OP(name)                                                        \
      .Input("tables: num_tables * resource")                              \
      .Input("batch: float")                                               \
      .Input("sizes: int64")                                               \
      .Output("output: float")                                             \
      .Attr("num_tables: int >= 1")                                        \
      .Attr("table_of_feature: list(int)")                                 \
      .Attr("weighted: bool = false")                                      \
      .SetIsStateful()                                                     \
      .SetShapeFn([](InferenceContext* context) {                          \
        context->set_output(0, context->input(context->num_inputs() - 2)); \
        return absl::OkStatus();                                           \
      })

// The name in graphs that older versions saved.
PREFETCH_ROWS("GroupEmbedding>BringRows").Doc("An older name of GroupEmbedding>PrefetchRows.");

PREFETCH_ROWS("GroupEmbedding>PrefetchRows").Doc(R"doc(
Begins to move rows of the batch's keys to the first tier of their tables, and does not wait for it.

A hint: no value changes, no key is counted or gets a row. What cannot be moved stays where it is.

tables: keyed tables with several tiers, all of one device.
batch: made by GroupIds.
sizes: made by GroupIds; host memory.
output: the batch, as it is. Named as the output of Identity, which a served model has in its place.
table_of_feature: per feature, the index into `tables`, or -1: its table is none of them.
weighted: whether `batch` has weights.
)doc");

#undef PREFETCH_ROWS

}  // namespace group_embedding
