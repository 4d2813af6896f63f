// The handles of many variables as one.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {
namespace {

// Types are attributes: what is declared a resource makes an op stateful, and functions run
// stateful ops even where nobody uses what they make.
REGISTER_OP("GroupEmbedding>PackHandles")
    .Input("handles: handle_types")
    .Output("packed: packed_type")
    .Attr("handle_types: list({resource}) >= 1")
    .Attr("packed_type: {resource} = DT_RESOURCE")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Makes one handle of the handles of many variables. Ops of this library take it in place of a list.

handles: scalars.
packed: [1], the handle of a resource that holds the variables.
)doc");

}  // namespace
}  // namespace group_embedding
