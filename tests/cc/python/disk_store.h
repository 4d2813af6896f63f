// Records by key on disk, on NumPy arrays.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

void BindDiskStore(pybind11::module_& m);

}  // namespace group_embedding
