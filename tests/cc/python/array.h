// Arrays of NumPy and of CUDA libraries, seen as pointers and shapes without copying: whatever has
// __array_interface__ or __cuda_array_interface__.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/group.h"

namespace group_embedding {

struct ArrayView {
  void* data = nullptr;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in bytes
  std::string type;              // as in typestr without the byte order: f4, i8, u2, ...
  bool on_gpu = false;
  bool read_only = false;
  std::string name;  // for messages

  int64_t item_bytes() const { return std::stoll(type.substr(1)); }
  int64_t num_items() const;
  // The axes from `first_axis` on lie one after the other without gaps.
  bool IsContiguousFrom(size_t first_axis) const;
};

// Raises TypeError unless `object` is an array.
ArrayView ViewArray(pybind11::handle object, const std::string& name);

// As above, and raises ValueError unless type, rank and place are as said. An empty `type` is any.
ArrayView ViewArray(pybind11::handle object, const std::string& name, const std::string& type,
                    size_t rank, bool on_gpu);

void RequireWritable(const ArrayView& array);
void RequireShape(const ArrayView& array, const std::vector<int64_t>& shape);
void RequireContiguous(const ArrayView& array);
void RequireCount(const std::string& name, size_t expected, size_t got);

// "name[index]"
std::string At(const std::string& name, size_t index);

DataType ParseDataType(const std::string& name, const std::string& word);

// A matrix of `dtype`. NumPy has no bfloat16, and torch has no name for it in its interface: such
// arrays come as views of any type of two bytes.
ArrayView ViewRows(pybind11::handle array, const std::string& name, DataType dtype, size_t rank,
                   bool on_gpu);

}  // namespace group_embedding
