// The ids of a group's features, on arrays, for Python.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "grouping/group_ids.h"
#include "python/array.h"
#include "python/run.h"

namespace group_embedding {

// One feature as it arrives, with the arrays that it borrows.
struct PyFeatureIds {
  FeatureIds ids{};
  bool on_gpu = false;
  std::vector<pybind11::object> arrays;
};

PyFeatureIds SparseIds(pybind11::object values, pybind11::object indices,
                       const std::vector<int64_t>& dense_shape, pybind11::object weights,
                       pybind11::object weight_indices);
PyFeatureIds RaggedIds(pybind11::object values, pybind11::object row_splits,
                       pybind11::object weights, pybind11::object weight_row_splits);
PyFeatureIds DenseIds(pybind11::object values, pybind11::object weights);

class PyGrouping {
 public:
  PyGrouping(const std::vector<PyFeatureIds>& features, bool weighted, pybind11::object allocate,
             int num_threads);

  // Sizes and offsets of the buffer, in floats.
  pybind11::dict Layout() const;
  // Writes the batch; on the host raises ValueError on a fault.
  void Run(pybind11::object buffer, uintptr_t stream);
  void Check(uintptr_t stream);

 private:
  void Raise(const Fault& fault) const;

  std::vector<PyFeatureIds> features_;
  std::vector<FeatureIds> ids_;
  bool weighted_;
  bool on_gpu_;
  Scratch scratch_;
  ParallelFor parallel_for_;
  std::unique_ptr<DeviceFault> fault_;
  int64_t num_samples_ = 0, num_ids_ = 0;
};

}  // namespace group_embedding
