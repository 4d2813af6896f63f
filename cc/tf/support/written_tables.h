// WrittenTables: the tables and slots that an update writes in place. They are locked for writing
// as long as the object exists, and share no buffer with a reader: if a variable's buffer is
// shared, it is copied before the first write, as TensorFlow's sparse updates do.
#pragma once

#include <string>
#include <vector>

#include "core/group.h"
#include "optimizer/update.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/handle_list.h"
#include "tf/support/resource_locks.h"
#include "tf/support/written_variables.h"

namespace group_embedding {

// What the attributes of an op say about its rule.
struct RuleAttrs {
  explicit RuleAttrs(tensorflow::OpKernelConstruction* context);

  RuleIndex rule;
  int row_slot;                               // the slot that is one number per row; or -1
  std::vector<int32_t> slots;                 // which of the rule's slots the tables have
  std::vector<std::string> keyed_slot_names;  // of each of `slots`, in keyed tables
  std::vector<float> keyed_slot_starts;
  tensorflow::DataType dtype, slot_dtype;
  bool stochastic_rounding, stochastic_slots;

 private:
  // Whether the rule, called `name`, can have slots of that type.
  absl::Status CheckSlotType(const std::string& name) const;
};

class WrittenTables {
 public:
  WrittenTables() = default;
  WrittenTables(const WrittenTables&) = delete;
  WrittenTables& operator=(const WrittenTables&) = delete;

  // Inputs "tables" and "slots" of the op, handles or references; `slots` has those of the first
  // table first. Behind them "keyed_tables", which keep their slots themselves.
  absl::Status Open(tensorflow::OpKernelContext* context, const RuleAttrs& attrs,
                    const std::vector<std::string>& names);

  // One for each of `names`.
  const std::vector<Table>& tables() const { return tables_; }
  const std::vector<TableUpdate>& updates() const { return updates_; }

  // To be called before rows of table `t` are written: row numbers where the op runs.
  absl::Status BeforeWrite(tensorflow::OpKernelContext* context, size_t t, const int64_t* rows,
                           int64_t num_rows) const;

 private:
  absl::Status Find(tensorflow::OpKernelContext* context, const HandleList& list, int i,
                    const std::string& name);
  // names: of variables first.
  absl::Status OpenVariables(tensorflow::OpKernelContext* context, const RuleAttrs& attrs,
                             int num_tables, const std::vector<std::string>& names);
  absl::Status OpenKeyed(tensorflow::OpKernelContext* context, const RuleAttrs& attrs,
                         const EmbeddingTableResource& keyed);

  std::vector<Table> tables_;
  std::vector<TableUpdate> updates_;
  WrittenVariables variables_;            // tables, then slots
  std::vector<EmbeddingTablePtr> keyed_;  // the last of the tables
  ExclusiveLocks locks_;
};

}  // namespace group_embedding
