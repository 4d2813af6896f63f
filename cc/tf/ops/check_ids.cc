// A check of ids before tables are read, as a TensorFlow op.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tf/ops/group_attrs.h"

namespace group_embedding {

// Without outputs: who reads a table after it waits for it by control dependency.
REGISTER_OP("GroupEmbedding>CheckIds")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("num_rows: int64")
    .Attr("table_of_feature: list(int)")
    .COMBINERS_ATTR.Attr("table_names: list(string)")
    .Attr("feature_names: list(string)")
    .Attr("weighted: bool = false")
    .Attr("prune_negative: bool = true")
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Raises the error of the first id that is outside its table, as GroupLookup does.

batch, sizes: made by GroupIds.
num_rows: [number of tables], or -1 for a table whose rows are found by key: none of its ids is bad.
table_of_feature: per feature, the index into num_rows.
)doc");

}  // namespace group_embedding
