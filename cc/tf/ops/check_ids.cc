// A check of a call's ids before its tables are read, as a TensorFlow op.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/group_attrs.h"

namespace group_embedding {

// Stateless, as a dataset that runs a stateful op cannot be saved. TensorFlow drops a stateless op
// that others wait for by control dependencies alone, so `checked` stands for `sizes` behind it.
REGISTER_OP("GroupEmbedding>CheckIds")
    .Input("batches: num_batches * float")
    .Input("sizes: num_batches * int64")
    .Input("num_rows: int64")
    .Output("checked: num_batches * int64")
    .Attr("num_batches: int >= 1")
    .Attr("num_features: list(int)")
    .Attr("table_of_feature: list(int)")
    .COMBINERS_ATTR.Attr("table_names: list(string)")
    .Attr("feature_names: list(string)")
    .Attr("weighted: list(bool)")
    .Attr("prune_negative: bool = true")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      const int num_batches = context->num_outputs();
      for (int b = 0; b < num_batches; ++b) {
        context->set_output(b, context->input(num_batches + b));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Raises the error of the first id that is outside its table, as GroupLookup does.

batches, sizes: of each group of a call, made by GroupIds.
num_rows: [number of tables of all groups], or -1 for a table whose ids are not checked.
checked: `sizes`.
num_features, weighted: per batch.
table_of_feature: per feature of all batches, the index into num_rows.
)doc");

}  // namespace group_embedding
