// PyServedRows: the rows of served tables, and lookups of them on the host or on a GPU that has all
// rows or copies of some.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/row_format.h"
#include "python/run.h"
#include "serving/device/fetched_rows.h"
#include "serving/device/resident_rows.h"
#include "serving/device/row_cache.h"
#include "table/memory.h"

namespace group_embedding {

class PyServedRows {
 public:
  PyServedRows(const std::vector<pybind11::object>& tables, const std::string& format,
               std::optional<int64_t> copies_bytes, bool resident, pybind11::object allocate,
               int num_threads);

  void Lookup(pybind11::object ids, const std::vector<int64_t>& num_ids,
              pybind11::object row_splits, pybind11::object weights,
              const std::vector<pybind11::object>& outputs,
              const std::vector<int64_t>& table_of_feature,
              const std::vector<std::string>& combiners, uintptr_t stream);
  void Write(int64_t table, int64_t row, pybind11::object values);
  pybind11::dict Counts(int64_t table) const;

 private:
  struct Stored {
    std::unique_ptr<Memory> memory;
    int64_t num_rows, dim;
  };
  const Stored& At(int64_t table) const;

  const RowFormat format_;
  const bool on_gpu_;
  Scratch scratch_;
  const ParallelFor parallel_for_;
  std::vector<Stored> tables_;
#if GROUP_EMBEDDING_CUDA
  // Each table has the one or the other.
  std::vector<std::unique_ptr<ResidentRows>> residents_;
  std::vector<std::unique_ptr<RowCache>> caches_;
  std::unique_ptr<CacheTurns> turns_;
#endif
};

}  // namespace group_embedding
