// The update of whole variables in place, as a TensorFlow op.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {
namespace {

constexpr char kDoc[] = R"doc(
Updates many variables and their slots, element by element, by one formula, in one pass.

variables: the variables that are written.
slots: the slots of the first variable, then those of the next, each of its variable's shape.
grads: a gradient for each variable, of its shape.
numbers: the numbers of the formula that are the same for all elements, each one that `dtype` holds.
program: the steps of the formula, three numbers each: an operation of cc/optimizer/dense_program.h,
  and the registers of its two operands. The first registers are an element of the variable, of its
  gradient, of each slot, and the numbers; each step writes the next register, rounded to `dtype`.
results: the registers of the new element of the variable, and of each of its slots.
names: of the variables, for errors.
)doc";

}  // namespace

REGISTER_OP("GroupEmbedding>DenseUpdate")
    .Input("variables: num_variables * resource")
    .Input("slots: num_slots * resource")
    .Input("grads: num_grads * dtype")
    .Input("numbers: float")
    .Attr("num_variables: int >= 1")
    .Attr("num_slots: int >= 0")
    .Attr("num_grads: int >= 1")
    .Attr("dtype: {float, half, bfloat16}")
    .Attr("program: list(int)")
    .Attr("results: list(int)")
    .Attr("names: list(string)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(kDoc);

}  // namespace group_embedding
