// The sizes of a batch as a string, and back.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("GroupEmbedding>BatchSizesToString")
    .Input("sizes: int64")
    .Output("text: string")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Makes a string of the sizes of a batch. Strings stay in host memory where other tensors are copied
to a GPU: by iterators, optionals, loops and the results of functions. There the host would wait for
the GPU to know sizes that it knew before.

sizes: made by GroupIds; host memory.
text: scalar, its elements in row-major order, 8 bytes each.
)doc");

REGISTER_OP("GroupEmbedding>BatchSizesFromString")
    .Input("text: string")
    .Output("sizes: int64")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Matrix(InferenceContext::kUnknownDim, 2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the sizes of which BatchSizesToString made the string.

text: scalar.
sizes: [features, 2]; host memory.
)doc");

}  // namespace
}  // namespace group_embedding
