// What an update works on: the tables of a group, their slots, one rule.
#pragma once

#include <type_traits>

#include "core/group.h"
#include "core/row_keys.h"
#include "optimizer/rules.h"

namespace group_embedding {

// One table that is written. `slots`: each [num_rows, dim], the rule's slot per row [num_rows];
// null: the table does not have it. Pointers are to where the function runs.
struct TableUpdate {
  void* rows;  // of the group's dtype; null: the table stays as it is
  void* slots[kMaxSlots];
  int64_t first_row = 0;  // rows before it stay as they are
  RowKeys keys;
};

// The rules whose slots may be in bfloat16 beside rows of any type, and are then rounded
// stochastically: an average moves by less than half a unit in most steps.
using SmallSlotRules = RuleList<Adagrad, RowwiseAdagrad, Adam, RowwiseAdam>;

template <typename Rule, typename... Rules>
constexpr bool IsAmong(RuleList<Rules...>) {
  return (std::is_same_v<Rule, Rules> || ...);
}
template <typename Rule>
inline constexpr bool kHasSmallSlots = IsAmong<Rule>(SmallSlotRules{});

inline bool HasSmallSlots(RuleIndex rule) {
  bool has = false;
  ForRule(rule, [&](auto chosen) { has = kHasSmallSlots<decltype(chosen)>; });
  return has;
}

struct Update {
  RuleIndex rule;
  const Hyper* hyper;         // one; where the function runs
  const TableUpdate* tables;  // [num_tables], in host memory
  DataType slot_dtype;        // of all slots
  bool stochastic_rounding;   // of rows in 16-bit types; else they are rounded to nearest
  bool stochastic_slots;      // of slots in bfloat16, by a rule that HasSmallSlots
};

}  // namespace group_embedding
