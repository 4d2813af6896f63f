// The base of ops that ask or change one keyed table.
#pragma once

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
    EmbeddingTable* const table = resource->table().get();
    OP_REQUIRES_OK(context, Named(*table, CatchErrors([&] { return Run(context, table); })));
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* context, EmbeddingTable* table) = 0;

 private:
  // An error that names its table: one of memory for a call comes from where no table is known.
  static absl::Status Named(const EmbeddingTable& table, const absl::Status& status) {
    if (status.ok() || absl::StrContains(status.message(), "table '")) return status;
    return absl::Status(status.code(),
                        absl::StrCat("table '", table.options().name, "': ", status.message()));
  }
};

}  // namespace group_embedding
