// Files of keyed tables.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

void BindTableFile(pybind11::module_& m);

}  // namespace group_embedding
