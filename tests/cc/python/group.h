// A group of lookups on arrays, for Python.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fused/group_lookup_grad.h"
#include "fused/group_update.h"
#include "python/array.h"
#include "python/run.h"

namespace group_embedding {

// Holds the arrays, and the descriptors made of them once, so that a call is a call of the core.
class PyGroup {
 public:
  PyGroup(const std::vector<pybind11::object>& tables, const std::vector<pybind11::object>& outputs,
          pybind11::object ids, pybind11::object row_splits, pybind11::object weights,
          const std::string& dtype, const std::vector<int64_t>& table_of_feature,
          const std::vector<std::string>& combiners, const std::vector<float>& max_norms,
          bool prune_negative, bool read_zeros, pybind11::object allocate, int num_threads,
          const std::optional<std::vector<int64_t>>& first_host_rows);

  void Lookup(uintptr_t stream);
  void Check(uintptr_t stream);
  void SortRows(uintptr_t stream);
  std::vector<int64_t> NumUnique(uintptr_t stream);
  void ReduceRows(const std::vector<pybind11::object>& indices,
                  const std::vector<pybind11::object>& values, uintptr_t stream);
  void WeightGrad(pybind11::object weight_grad, uintptr_t stream);
  void Update(const group_embedding::Update& update, uintptr_t stream);
  pybind11::dict ScratchBytes() const;

  Group group() const;  // borrows from this
  const std::vector<Feature>& features() const { return features_; }
  const std::vector<Table>& tables() const { return tables_; }
  const std::vector<pybind11::object>& table_arrays() const { return table_arrays_; }
  DataType dtype() const { return dtype_; }
  bool on_gpu() const { return on_gpu_; }

 private:
  void AddTable(pybind11::object array, float max_norm);
  void AddFeature(pybind11::object output, int64_t table, const std::string& combiner);
  void Raise(const Fault& fault) const;  // ValueError, if there is one
  void RequireFewRows() const;           // as RowSorter does

  std::vector<pybind11::object> arrays_;  // kept alive
  std::vector<pybind11::object> table_arrays_;
  std::vector<Table> tables_;
  std::vector<Feature> features_;
  Batch batch_{};
  DataType dtype_;
  InvalidIds invalid_ids_;
  bool on_gpu_;
  Scratch scratch_;
  ParallelFor parallel_for_;
  std::unique_ptr<DeviceFault> fault_;  // on a GPU
  std::unique_ptr<RowSorter> sorter_;   // on the host
#if GROUP_EMBEDDING_CUDA
  std::vector<int64_t> CopyNumUnique(uintptr_t stream);
  SortedRows sorted_{};
#endif
  std::vector<int64_t> num_unique_;  // empty until they are known
};

}  // namespace group_embedding
