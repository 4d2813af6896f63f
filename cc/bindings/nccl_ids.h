// What ranks with a GPU each tell each other before they are a NCCL communicator.
#pragma once

#include <pybind11/pybind11.h>

namespace group_embedding {

// Binds `has_cuda`, and in a build with CUDA the functions.
void BindNcclIds(pybind11::module_& m);

}  // namespace group_embedding
