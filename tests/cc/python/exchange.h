// Exchanges between ranks, on arrays, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

// In a build without CUDA: the local communicator alone.
void BindExchange(pybind11::module_& m);

}  // namespace group_embedding
