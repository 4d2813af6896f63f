// Tables: the tables of a group, read in place. Variables and keyed tables stay locked for reading
// as long as the object exists, as in TensorFlow's ResourceGather, so that an optimizer neither
// writes during a read nor has to copy a table.
#pragma once

#include <string>
#include <vector>

#include "core/group.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/group_attrs.h"
#include "tf/support/resource_locks.h"

namespace group_embedding {

class Tables {
 public:
  // The op's inputs "tables", handles or tensors, its first, and "keyed_tables", which are those of
  // `keyed` among them; an op without keyed tables need not have this input.
  absl::Status Read(tensorflow::OpKernelContext* context, const GroupAttrs& attrs,
                    const std::vector<int32_t>& keyed);

  const std::vector<Table>& get() const { return tables_; }
  // Whether table `t` is a variable: neither a tensor nor keyed.
  bool is_variable(size_t t) const { return sources_[t].variable != nullptr; }
  // Table `t`, which is keyed.
  const std::shared_ptr<EmbeddingTable>& keyed(int32_t t) const {
    return sources_[t].keyed->table();
  }

 private:
  // What table t is read from: a variable, a keyed table, or neither: a tensor.
  struct Source {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    EmbeddingTablePtr keyed;
  };
  absl::Status Find(tensorflow::OpKernelContext* context, const GroupAttrs& attrs,
                    const std::vector<int32_t>& keyed);

  std::vector<Source> sources_;  // outlive the locks
  std::vector<Table> tables_;
  SharedLocks locks_;
};

}  // namespace group_embedding
