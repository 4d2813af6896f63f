#include "python/update.h"

#include "python/array.h"

namespace group_embedding {
namespace {

namespace py = pybind11;

RuleIndex ParseRule(const std::string& word) {
  std::string names;
  for (RuleIndex rule = 0;; ++rule) {
    std::string name;
    if (!ForRule(rule, [&](auto chosen) { name = decltype(chosen)::kName; })) break;
    if (name == word) return rule;
    names += (names.empty() ? "" : ", ") + name;
  }
  throw py::value_error("rule: expected one of " + names + ", got '" + word + "'");
}

}  // namespace

PyUpdate::PyUpdate(py::object group, const std::string& rule,
                   const std::vector<std::vector<py::object>>& slots, py::object hyper,
                   const std::string& slot_dtype, bool stochastic_rounding, bool stochastic_slots,
                   const std::vector<bool>& updated_tables, const std::vector<py::object>& keys)
    : group_object_(std::move(group)), group_(&group_object_.cast<PyGroup&>()) {
  const ArrayView view = ViewArray(hyper, "hyper", "f4", 1, group_->on_gpu());
  RequireShape(view, {kNumHyper});
  RequireContiguous(view);
  arrays_.push_back(hyper);
  update_.rule = ParseRule(rule);
  update_.hyper = static_cast<const Hyper*>(view.data);
  update_.slot_dtype = ParseDataType("slot_dtype", slot_dtype);
  update_.stochastic_rounding = stochastic_rounding;
  update_.stochastic_slots = stochastic_slots;
  const bool is_small = update_.slot_dtype == DataType::kBFloat16 && HasSmallSlots(update_.rule);
  if (update_.slot_dtype != DataType::kFloat32 && update_.slot_dtype != group_->dtype() &&
      !is_small) {
    throw py::value_error("slot_dtype: expected float32 or the type of the tables, got '" +
                          slot_dtype + "'");
  }
  RequireCount("slots", group_->tables().size(), slots.size());
  if (!updated_tables.empty()) {
    RequireCount("updated_tables", group_->tables().size(), updated_tables.size());
  }
  for (size_t t = 0; t < slots.size(); ++t) {
    AddTable(slots[t], updated_tables.empty() || updated_tables[t]);
  }
  if (!keys.empty()) RequireCount("keys", tables_.size(), keys.size());
  for (size_t t = 0; t < keys.size(); ++t) AddKeys(t, keys[t]);
  update_.tables = tables_.data();
}

void PyUpdate::AddKeys(size_t t, const py::object& keys) {
  const ArrayView view = ViewArray(keys, At("keys", t), "i8", 1, group_->on_gpu());
  RequireShape(view, {group_->tables()[t].num_rows});
  RequireContiguous(view);
  tables_[t].keys = {static_cast<const char*>(view.data), sizeof(int64_t)};
  arrays_.push_back(keys);
}

void PyUpdate::AddTable(const std::vector<py::object>& slots, bool is_updated) {
  const size_t t = tables_.size();
  const Table& table = group_->tables()[t];
  int num_slots = 0;
  int row_slot = kNoRowSlot;
  ForRule(update_.rule, [&](auto rule) {
    num_slots = decltype(rule)::kNumSlots;
    row_slot = decltype(rule)::kRowSlot;
  });
  RequireCount(At("slots", t), num_slots, slots.size());
  RequireWritable(ViewArray(group_->table_arrays()[t], At("tables", t)));
  TableUpdate update{};
  update.rows = is_updated ? const_cast<void*>(table.rows) : nullptr;
  for (int k = 0; k < num_slots; ++k) {
    if (slots[k].is_none()) continue;
    const ArrayView view = ViewRows(slots[k], At(At("slots", t), k), update_.slot_dtype,
                                    k == row_slot ? 1 : 2, group_->on_gpu());
    RequireShape(view, k == row_slot ? std::vector<int64_t>{table.num_rows}
                                     : std::vector<int64_t>{table.num_rows, table.dim});
    RequireContiguous(view);
    RequireWritable(view);
    update.slots[k] = view.data;
    arrays_.push_back(slots[k]);
  }
  tables_.push_back(update);
}

void PyUpdate::Run(uintptr_t stream) { group_->Update(update_, stream); }

py::dict PyUpdate::Rules() {
  py::dict rules;
  for (RuleIndex rule = 0; ForRule(rule,
                                   [&](auto chosen) {
                                     using Rule = decltype(chosen);
                                     rules[Rule::kName] =
                                         py::make_tuple(Rule::kNumSlots, Rule::kRowSlot);
                                   });
       ++rule) {
  }
  return rules;
}

}  // namespace group_embedding
