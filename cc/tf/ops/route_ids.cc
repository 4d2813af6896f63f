// Routing of ids to the ranks that own their rows, as TensorFlow ops.
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/group_attrs.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("GroupEmbedding>RouteIds")
    .Input("batch: float")
    .Input("sizes: int64")
    .Input("of_host: num_of_host * int64")
    .Output("messages: int64")
    .Output("splits: int32")
    .Output("counts: int64")
    .Output("routed: float")
    .Output("routed_sizes: int64")
    .Attr("num_ranks: int >= 1")
    .Attr("num_rows: list(int)")
    .Attr("placements: list({'mod', 'hash', 'one_rank', 'columns'})")
    .Attr("placement_ranks: list(int)")
    .Attr("table_of_feature: list(int)")
    .COMBINERS_ATTR.Attr("description: string")
    .Attr("weighted: bool = false")
    .Attr("prune_negative: bool = true")
    .Attr("invalid_ids: {'raise', 'ignore'} = 'raise'")
    .Attr("tables_with_sums: list(int) = []")
    .Attr("num_of_host: int >= 0 = 0")
    .Attr("proxies: list(int) = []")
    .Attr("ranks_of_host: int >= 0 = 0")
    .SetIsStateful()  // not computed ahead of time where ids are constant: other ranks take part
    .SetShapeFn([](InferenceContext* context) {
      int64_t num_ranks, ranks_of_host;
      std::vector<int64_t> num_rows;
      TF_RETURN_IF_ERROR(context->GetAttr("num_ranks", &num_ranks));
      TF_RETURN_IF_ERROR(context->GetAttr("ranks_of_host", &ranks_of_host));
      TF_RETURN_IF_ERROR(context->GetAttr("num_rows", &num_rows));
      if (ranks_of_host > 0) num_ranks = ranks_of_host;
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      context->set_output(1, context->Vector(num_ranks));
      context->set_output(2, context->Matrix(num_ranks, static_cast<int64_t>(num_rows.size())));
      std::vector<int32_t> with_sums;
      TF_RETURN_IF_ERROR(context->GetAttr("tables_with_sums", &with_sums));
      context->set_output(
          3, with_sums.empty() ? context->input(0) : context->Vector(context->UnknownDim()));
      context->set_output(4, context->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds the unique rows of a batch and the rank that owns each: see cc/core/owner.h.

batch, sizes: made by GroupIds.
of_host: none, or `times` and `fault` of the ReadRequests of which the batch is.
messages: what each rank is asked for, rank after rank: see cc/exchange/host/messages.h.
splits: [num_ranks], the words for each rank, of the job or, with proxies, of the host.
counts: [num_ranks, num_tables], the rows of each table asked of each rank.
routed: `batch` with ids that name the rows of the matrices that the answers form, one per table.
routed_sizes: its sizes, which are others where owners send sums.
tables_with_sums: the tables of which an owner sends one sum of a sample's rows instead of the rows:
  see cc/exchange/host/route_sums.h.
num_rows: of each whole table; -1: its rows are found by key.
placements: per table, how its rows are spread over the ranks.
placement_ranks: per table, the rank that has it, where one has.
proxies: none, or for each rank the number, among the ranks_of_host ranks of this host, of the one
  that asks it: see cc/exchange/host/route_ids.h. Then that one is asked, for ids as `batch` has
  them.
description: what tables and features the lookup has, as a text; the same on all ranks.
)doc");

REGISTER_OP("GroupEmbedding>ReadRequests")
    .Input("messages: int64")
    .Input("splits: int32")
    .Output("batches: num_groups * float")
    .Output("sizes: num_groups * int64")
    .Output("times: num_groups * int64")
    .Output("counts: int64")
    .Output("fault: int64")
    .Attr("num_groups: int >= 1")
    .Attr("group_of_table: list(int)")
    .Attr("num_rows: list(int)")
    .Attr("table_of_feature: list(int)")
    .Attr("table_names: list(string)")
    .Attr("feature_names: list(string)")
    .Attr("description: string")
    .Attr("tables_with_sums: list(int) = []")
    .Attr("ranks_of_host: list(int) = []")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      int64_t num_groups;
      std::vector<int64_t> num_rows;
      TF_RETURN_IF_ERROR(context->GetAttr("num_groups", &num_groups));
      TF_RETURN_IF_ERROR(context->GetAttr("num_rows", &num_rows));
      ShapeHandle splits;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &splits));
      for (int64_t g = 0; g < num_groups; ++g) {
        context->set_output(g, context->Vector(InferenceContext::kUnknownDim));
        context->set_output(num_groups + g, context->Matrix(InferenceContext::kUnknownDim, 2));
        context->set_output(2 * num_groups + g, context->Vector(InferenceContext::kUnknownDim));
      }
      context->set_output(3 * num_groups, context->Matrix(context->Dim(splits, 0),
                                                          static_cast<int64_t>(num_rows.size())));
      context->set_output(3 * num_groups + 1, context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Turns the messages of all ranks into lookups of this rank's local rows, one for each group of tables:
one feature per table, one id per sample. In a group of tables with sums, a sample has the ids of a
sum, and weights. Fails, on every rank alike, when a rank reports a bad id, and where the
ranks' descriptions differ.

messages, splits: of RouteIds, as received from each rank.
batches, sizes: as of GroupIds.
times: per group, how often each id came; empty for a group without keys.
counts: [num_ranks, num_tables], the rows of each table that each rank asks for.
fault: a bad id of a rank of this host, for RouteIds; empty: there is none.
ranks_of_host: none, or the numbers in the job of the ranks that sent the messages, to which this one
  is a proxy: then a bad id is no failure.
group_of_table: the lookup that each table belongs to.
num_rows, table_of_feature, description, tables_with_sums: as of RouteIds.
)doc");

REGISTER_OP("GroupEmbedding>KeyOwners")
    .Input("keys: int64")
    .Output("owners: int64")
    .Attr("num_ranks: int >= 1")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
The rank that stores each key of a table whose keys are spread over all ranks.
)doc");

}  // namespace group_embedding
