// The tables and slots that an update writes in place: locked for writing while a WrittenTables is
// alive, and no reader's buffer among them. Readers of a variable may share its buffer until it is
// first written here; then they get a copy, as TensorFlow's own sparse updates have it.
#pragma once

#include <string>
#include <vector>

#include "core/group.h"
#include "optimizer/update.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace group_embedding {

// What the attributes of an op say about its rule.
struct RuleAttrs {
  explicit RuleAttrs(tensorflow::OpKernelConstruction* context);

  RuleIndex rule;
  bool slot_per_row;
  std::vector<int32_t> slots;  // which of the rule's slots the tables have
  tensorflow::DataType dtype, slot_dtype;
  bool stochastic_rounding;
};

class WrittenTables {
 public:
  WrittenTables() = default;
  WrittenTables(const WrittenTables&) = delete;
  WrittenTables& operator=(const WrittenTables&) = delete;
  ~WrittenTables();

  // Inputs "tables" and "slots" of the op, handles or references; `slots` has those of the first
  // table first.
  absl::Status Open(tensorflow::OpKernelContext* context, const RuleAttrs& attrs,
                    const std::vector<std::string>& names);

  // One for each of `names`.
  const std::vector<Table>& tables() const { return tables_; }
  const std::vector<TableUpdate>& updates() const { return updates_; }

 private:
  absl::Status Find(tensorflow::OpKernelContext* context, int input, const std::string& name);
  void LockAll();

  std::vector<Table> tables_;
  std::vector<TableUpdate> updates_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;  // null: a reference
  std::vector<tensorflow::mutex*> mutexes_, locked_;
};

}  // namespace group_embedding
