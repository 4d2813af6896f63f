// Guarded: a kernel whose exceptions, such as those for lack of memory, become the op's error. An
// exception that left a kernel would end the process.
#pragma once

#include <memory>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"

namespace group_embedding {

// To register in the place of `Op`.
template <typename Op, bool kIsAsync = std::is_base_of_v<tensorflow::AsyncOpKernel, Op>>
class Guarded : public Op {
 public:
  using Op::Op;

  void Compute(tensorflow::OpKernelContext* context) override {
    const absl::Status status = CatchErrors([&] {
      Op::Compute(context);
      return absl::OkStatus();
    });
    if (!status.ok()) context->CtxFailure(status);
  }
};

// One that throws has not given `done` away.
template <typename Op>
class Guarded<Op, true> : public Op {
 public:
  using Op::Op;

  void ComputeAsync(tensorflow::OpKernelContext* context,
                    tensorflow::AsyncOpKernel::DoneCallback done) override {
    const absl::Status status = CatchErrors([&] {
      Op::ComputeAsync(context, done);
      return absl::OkStatus();
    });
    if (status.ok()) return;
    context->CtxFailure(status);
    done();
  }
};

}  // namespace group_embedding

// Registers a kernel for the types of rows; `builder` is what REGISTER_KERNEL_BUILDER takes.
#define REGISTER_FOR_ROW_TYPES(builder, op)                                  \
  REGISTER_KERNEL_BUILDER(builder.TypeConstraint<float>("dtype"), op);       \
  REGISTER_KERNEL_BUILDER(builder.TypeConstraint<Eigen::half>("dtype"), op); \
  REGISTER_KERNEL_BUILDER(builder.TypeConstraint<Eigen::bfloat16>("dtype"), op)
