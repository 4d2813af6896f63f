// Routing of ids to the ranks that own their rows, as TensorFlow ops.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("RouteIds")
    .Input("batch: float")
    .Input("sizes: int64")
    .Output("messages: int64")
    .Output("splits: int32")
    .Output("counts: int64")
    .Output("routed: float")
    .Attr("num_ranks: int >= 1")
    .Attr("num_rows: list(int)")
    .Attr("table_of_feature: list(int)")
    .Attr("combiners: list({'sum', 'mean', 'sqrtn'})")
    .Attr("weighted: bool = false")
    .Attr("prune_negative: bool = true")
    .Attr("invalid_ids: {'raise', 'ignore'} = 'raise'")
    .SetIsStateful()  // not computed ahead of time where ids are constant: other ranks take part
    .SetShapeFn([](InferenceContext* context) {
      int64_t num_ranks;
      std::vector<int64_t> num_rows;
      TF_RETURN_IF_ERROR(context->GetAttr("num_ranks", &num_ranks));
      TF_RETURN_IF_ERROR(context->GetAttr("num_rows", &num_rows));
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      context->set_output(1, context->Vector(num_ranks));
      context->set_output(2, context->Matrix(num_ranks, num_rows.size()));
      context->set_output(3, context->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds the unique rows of a batch and the rank that owns each: row % num_ranks.

batch, sizes: made by GroupIds.
messages: what each rank is asked for, rank after rank: see cc/exchange/route_ids.h.
splits: [num_ranks], the words for each rank.
counts: [num_ranks, num_tables], the rows of each table asked of each rank.
routed: `batch` with ids that name the rows of the matrices that the answers form, one per table.
num_rows: of each whole table.
)doc");

REGISTER_OP("ReadRequests")
    .Input("messages: int64")
    .Input("splits: int32")
    .Output("batch: float")
    .Output("sizes: int64")
    .Output("counts: int64")
    .Attr("num_rows: list(int)")
    .Attr("table_of_feature: list(int)")
    .Attr("table_names: list(string)")
    .Attr("feature_names: list(string)")
    .SetShapeFn([](InferenceContext* context) {
      std::vector<int64_t> num_rows;
      TF_RETURN_IF_ERROR(context->GetAttr("num_rows", &num_rows));
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      context->set_output(1, context->Matrix(num_rows.size(), 2));
      context->set_output(2, context->Matrix(context->Dim(context->input(1), 0), num_rows.size()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Turns the messages of all ranks into a lookup of this rank's local rows: one feature per table, one id
per sample. Fails, on every rank alike, when a rank reports a bad id.

messages, splits: of RouteIds, as received from each rank.
batch, sizes: as of GroupIds.
counts: [num_ranks, num_tables], the rows of each table that each rank asks for.
)doc");

}  // namespace group_embedding
