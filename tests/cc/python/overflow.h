// overflow: see optimizer/overflow.h.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

namespace group_embedding {

// `dtypes`: per array. `result`: float32 [1], where the arrays are.
void PyOverflow(const std::vector<pybind11::object>& arrays, const std::vector<std::string>& dtypes,
                const pybind11::object& result, pybind11::object allocate, int num_threads,
                uintptr_t stream);

}  // namespace group_embedding
