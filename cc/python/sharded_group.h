// Groups whose tables are spread over ranks with a GPU each, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

// In a build without CUDA: nothing.
void BindShardedGroups(pybind11::module_& m);

}  // namespace group_embedding
