// Python bindings of lookups in tables that are sharded over ranks with a GPU each.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

// Binds nothing in a build without CUDA.
void BindShardedLookups(pybind11::module_& m);

}  // namespace group_embedding
