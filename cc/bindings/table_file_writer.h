// Files of keyed tables that are written without the table: rows of another library, and rows of
// files, quantised or not.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

void BindTableFileWriter(pybind11::module_& m);

}  // namespace group_embedding
