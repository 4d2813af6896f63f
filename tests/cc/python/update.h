// An update of a group's tables on arrays, for Python.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "python/group.h"

namespace group_embedding {

// A rule with its slots for the tables of a group: prepared once, so that a call is a call of the
// core.
class PyUpdate {
 public:
  PyUpdate(pybind11::object group, const std::string& rule,
           const std::vector<std::vector<pybind11::object>>& slots, pybind11::object hyper,
           const std::string& slot_dtype, bool stochastic_rounding, bool stochastic_slots,
           const std::vector<bool>& updated_tables, const std::vector<pybind11::object>& keys);

  void Run(uintptr_t stream);
  const Update& get() const { return update_; }

  // {name: (num_slots, the slot that is one number per row, or -1)}
  static pybind11::dict Rules();

 private:
  void AddTable(const std::vector<pybind11::object>& slots, bool is_updated);
  void AddKeys(size_t t, const pybind11::object& keys);

  pybind11::object group_object_;  // kept alive, as are the arrays
  PyGroup* group_;
  std::vector<pybind11::object> arrays_;
  std::vector<TableUpdate> tables_;
  Update update_{};
};

}  // namespace group_embedding
