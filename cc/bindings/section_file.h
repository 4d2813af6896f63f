// Section files in Python: the records and variables of published versions.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

void BindSectionFile(pybind11::module_& m);

}  // namespace group_embedding
