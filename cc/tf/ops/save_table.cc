// Keyed tables in checkpoints: their rows lie in files of their own beside the checkpoint's, and
// the checkpoint has a manifest of them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ScalarShape;
using ::tensorflow::shape_inference::ShapeHandle;

namespace {

// Inputs: a table, and scalars.
absl::Status CheckScalarInputs(InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    ShapeHandle scalar;
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &scalar));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("GroupEmbedding>SnapshotTables")
    .Input("tables: num_tables * resource")
    .Input("steps: int64")
    .Input("changes_only: bool")
    .Output("snapshot: int64")
    .Attr("num_tables: int >= 1")
    .Attr("evictions: list(string)")
    .Attr("steps_to_live: list(int)")
    .Attr("l2_weights: list(float)")
    .Attr("minutes_to_live: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Takes a snapshot of tables, all at one instant, for SaveTable to write.

tables: keyed tables, from EmbeddingTableHandleOp.
steps: [num_tables], the step of each table; -1: none. Host memory.
changes_only: [num_tables], whether to save only what changed since the last full save. A table
  without one, or whose files are gone, is saved in full. Host memory.
snapshot: a number for SaveTable.
evictions, steps_to_live, l2_weights, minutes_to_live: per table, which keys are evicted first:
  see EvictKeys; 'none': none.
)doc");

REGISTER_OP("GroupEmbedding>FullSaveId")
    .Input("table: resource")
    .Output("id: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The number of the last full save, to which a save of changes is added; 0: there is none, or its files
are gone. Ranks that share a table compare theirs.
)doc");

REGISTER_OP("GroupEmbedding>SaveTable")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("snapshot: int64")
    .Output("manifest: string")
    .Attr("part: int >= 0 = 0")
    .Attr("num_parts: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      TF_RETURN_IF_ERROR(CheckScalarInputs(context));
      return ScalarShape(context);
    })
    .Doc(R"doc(
Writes the rows of a snapshot to files beside a checkpoint. Nobody who trains the table waits for it.

prefix: of the checkpoint.
snapshot: from SnapshotTables.
manifest: what the checkpoint says of the files.
part, num_parts: which part of the table this one is: the keys of rank `part` of `num_parts`.
)doc");

REGISTER_OP("GroupEmbedding>MergeManifests")
    .Input("manifests: string")
    .Output("manifest: string")
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Makes one manifest of those of all parts of a table.

manifests: [num_parts].
)doc");

REGISTER_OP("GroupEmbedding>SeesFiles")
    .Input("prefixes: string")
    .Input("manifests: string")
    .Output("sees: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle prefixes;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &prefixes));
      TF_RETURN_IF_ERROR(context->Merge(prefixes, context->input(1), &prefixes));
      context->set_output(0, prefixes);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Tells which checkpoints lie where this process sees their files.

prefixes: [n], of the checkpoints.
manifests: [n], of a table whose files are looked for; empty: the index of the checkpoint is.
sees: [n].
)doc");

REGISTER_OP("GroupEmbedding>VerifyTable")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("manifest: string")
    .Attr("index: int >= 0 = 0")
    .Attr("count: int >= 1 = 1")
    .Attr("as_start: bool = false")
    .SetIsStateful()
    .SetShapeFn(CheckScalarInputs)
    .Doc(R"doc(
Fails if the table could not be restored from its files: one is missing, damaged, or of another
table, or they have more rows than the table may. Reads them to their ends.

index, count, as_start: as of RestoreTable.
)doc");

REGISTER_OP("GroupEmbedding>RestoreTable")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("manifest: string")
    .Attr("index: int >= 0 = 0")
    .Attr("count: int >= 1 = 1")
    .Attr("verified: bool = false")
    .Attr("as_start: bool = false")
    .SetIsStateful()
    .SetShapeFn(CheckScalarInputs)
    .Doc(R"doc(
Gives an initialized table what was saved of it, and nothing else. If a file is damaged it fails
before the table is changed.

index, count: which keys: those of rank `index` of `count`.
verified: by VerifyTable just now, so that they are read once.
as_start: of another training, which this one starts from: slots start anew, and keys that are new
  start as they do in this table.
)doc");

}  // namespace group_embedding
