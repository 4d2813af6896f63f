// An array in GPU memory of its own, for tests and for programs that have no library of such
// arrays.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "python/array.h"

namespace group_embedding {

// How many GPUs there are; 0 without a driver, or in a build without CUDA.
int NumDevices();

class DeviceArray {
 public:
  // Copies an array from host memory.
  explicit DeviceArray(pybind11::handle array);
  ~DeviceArray();
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  pybind11::dict interface() const;  // __cuda_array_interface__
  // Waits for the GPU and copies to a new NumPy array.
  pybind11::object ToHost() const;

 private:
  ArrayView host_;  // type and shape
  std::string dtype_;
  void* data_ = nullptr;
};

}  // namespace group_embedding
