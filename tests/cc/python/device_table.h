// Tables found by key, in GPU memory, on CUDA arrays.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

// Nothing in a build without CUDA.
void BindDeviceTable(pybind11::module_& m);

}  // namespace group_embedding
