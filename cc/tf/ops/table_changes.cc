// What changed in keyed tables since a mark, for publishers.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ScalarShape;
using ::tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("GroupEmbedding>FollowChanges")
    .Input("table: resource")
    .Input("follower: int64")
    .Input("mark: int64")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Sets the mark from which the next changes of a follower are counted.

table: from EmbeddingTableHandleOp.
follower: the publisher's number, above 0. Host memory.
mark: [2] from ReadChanges, or [0]: the mark of now. Host memory.
)doc");

REGISTER_OP("GroupEmbedding>SnapshotChanges")
    .Input("tables: num_tables * resource")
    .Input("follower: int64")
    .Input("step: int64")
    .Output("taken: bool")
    .Attr("num_tables: int >= 1")
    .Attr("parts: list(int)")
    .Attr("num_parts: list(int)")
    .Attr("abandoned_seconds: float = 60")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Takes a snapshot of what changed since the follower's mark, of all tables at one instant. A thread
reads it into memory, and nobody who trains the tables waits for the thread.

follower: the publisher's number; FollowChanges has set its mark in all tables. Host memory.
step: of the trainer, for the files' headers; -1: none. Host memory.
taken: false if a table has a snapshot already, of a save or of another publisher. Then there is
  none of these tables. Host memory.
abandoned_seconds: a save's snapshot is dropped that was taken before, if no save of the process has
  written a table since: its save has failed.
parts, num_parts: per table, which part of it this one is: the keys of rank `part` of `num_parts`.
)doc");

REGISTER_OP("GroupEmbedding>ReadChanges")
    .Input("table: resource")
    .Input("follower: int64")
    .Output("file: string")
    .Output("sum: int64")
    .Output("mark: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle scalar;
      for (int i = 0; i < context->num_inputs(); ++i) {
        TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &scalar));
      }
      context->set_output(0, context->Scalar());
      context->set_output(1, context->Vector(5));
      context->set_output(2, context->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Waits until the changes of a table are in memory, since SnapshotChanges, and gives them away.

follower: the publisher's number. Host memory.
file: the content of a table file: erased keys, and rows without slots. Host memory.
sum: bytes, checksum and file id, as in a checkpoint's manifest; rows; erased keys. Host memory.
mark: [2] for FollowChanges, once the changes are where they should be. Host memory.
)doc");

REGISTER_OP("GroupEmbedding>DropChanges")
    .Input("table: resource")
    .Input("follower: int64")
    .Attr("unfollow: bool = false")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Frees changes in memory that the follower did not read. Does nothing if there are none.

follower: the publisher's number. Host memory.
unfollow: whether to forget the follower's mark, too.
)doc");

}  // namespace group_embedding
