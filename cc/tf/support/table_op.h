// The base of ops that ask or change one keyed table.
#pragma once

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"

namespace group_embedding {

// An op on one table, its first input, which it has for itself: what is kept of rows may be written
// by whoever locates keys.
class TableOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    EmbeddingTablePtr resource;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    tensorflow::mutex_lock lock(*resource->mu());
    OP_REQUIRES_OK(context, resource->CheckInitialized());
    OP_REQUIRES_OK(context, CatchErrors([&] { return Run(context, resource->table().get()); }));
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* context, EmbeddingTable* table) = 0;
};

}  // namespace group_embedding
