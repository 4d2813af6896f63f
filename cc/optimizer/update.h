// What an update works on: the tables of a group, their slots, one rule.
#pragma once

#include "core/group.h"
#include "optimizer/rules.h"

namespace group_embedding {

// One table that is written. `slots`: each [num_rows, dim], the rule's slot per row [num_rows];
// null: the table does not have it. Pointers are to where the function runs.
struct TableUpdate {
  void* rows;  // of the group's dtype; null: the table stays as it is
  void* slots[kMaxSlots];
  int64_t first_row = 0;  // rows before it stay as they are
};

struct Update {
  RuleIndex rule;
  const Hyper* hyper;         // one; where the function runs
  const TableUpdate* tables;  // [num_tables], in host memory
  DataType slot_dtype;        // of all slots
  bool stochastic_rounding;   // of rows in 16-bit types; slots are rounded to nearest
};

}  // namespace group_embedding
