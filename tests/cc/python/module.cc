// support._core: the framework-free core on NumPy and CUDA arrays, for tests and benchmarks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "python/device_array.h"
#include "python/device_table.h"
#include "python/disk_store.h"
#include "python/exchange.h"
#include "python/group.h"
#include "python/grouping.h"
#include "python/host_table.h"
#include "python/overflow.h"
#include "python/save_table.h"
#include "python/served_rows.h"
#include "python/sharded_lookup.h"
#include "python/update.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

void BindGroup(py::module_& m) {
  py::class_<PyGroup>(m, "Group", R"(Lookups of several tables, run together.

All arrays are in host memory, or all are in GPU memory. They are borrowed, not copied: their
contents may change between calls, their addresses may not.

Args:
  tables: [num_rows, dim] arrays of dtype.
  outputs: one [num_samples, dim] array of dtype per feature; columns of a wider array will do. What
    lookup writes; the backward functions read the gradients of the outputs from it. A number
    instead of an array is that many samples without a gradient, which are passed over.
  ids: int64 [num_ids], feature after feature, sample after sample.
  row_splits: int64 [num_samples of all features + 1]; None: every sample has one id.
  weights: float32 [num_ids], or None.
  dtype: float32, float16 or bfloat16 (as arrays of any type of 2 bytes).
  table_of_feature: index into tables.
  combiners: sum, mean or sqrtn, per feature.
  max_norms: per table; 0 is none.
  first_host_rows: per table of a group in GPU memory, the first row that is in host memory instead
    (DeviceTable.first_host_row); -1, or None for all tables: no row is.
  allocate: num_bytes -> array in GPU memory, called once per function. None for arrays on the host.

Example, on the host:
  group = Group(tables=[t], outputs=[out], ids=ids, row_splits=splits, table_of_feature=[0],
                combiners=["sum"], max_norms=[0])
  group.lookup())")
      .def(py::init<const std::vector<py::object>&, const std::vector<py::object>&, py::object,
                    py::object, py::object, const std::string&, const std::vector<int64_t>&,
                    const std::vector<std::string>&, const std::vector<float>&, bool, bool,
                    py::object, int, const std::optional<std::vector<int64_t>>&>(),
           py::kw_only(), "tables"_a, "outputs"_a, "ids"_a, "row_splits"_a,
           "weights"_a = py::none(), "dtype"_a = "float32", "table_of_feature"_a, "combiners"_a,
           "max_norms"_a, "prune_negative"_a = true, "read_zeros"_a = false,
           "allocate"_a = py::none(), "num_threads"_a = 1, "first_host_rows"_a = py::none())
      .def("lookup", &PyGroup::Lookup, "stream"_a = 0,
           "Writes the outputs. A bad id raises ValueError on the host; for a GPU call check().")
      .def("check", &PyGroup::Check, "stream"_a = 0,
           "Waits for the stream and raises ValueError if a lookup on it met a bad id.")
      .def("sort_rows", &PyGroup::SortRows, "stream"_a = 0, "First step of the backward pass.")
      .def("num_unique", &PyGroup::NumUnique, "stream"_a = 0,
           "After sort_rows: [num_tables + 1], the first unique row of each table and the total. "
           "Waits for the stream.")
      .def("reduce_rows", &PyGroup::ReduceRows, "indices"_a, "values"_a, "stream"_a = 0,
           "After num_unique: writes per table the looked-up rows, int64 [n], and their "
           "gradients, [n, dim] of dtype.")
      .def("weight_grad", &PyGroup::WeightGrad, "weight_grad"_a, "stream"_a = 0,
           "Writes the gradient of the weights, float32 [num_ids].")
      .def_property_readonly("scratch_bytes", &PyGroup::ScratchBytes,
                             "Bytes that each function asks allocate for.");
}

void BindUpdate(py::module_& m) {
  py::class_<PyUpdate>(m, "Update",
                       R"(The backward pass of a Group fused with the update of its tables.

Args:
  group: a Group whose outputs hold the gradients of the outputs.
  rule: one of `rules`, which says {name: (number of slots, whether they are one number per row)}.
  slots: per table, per slot an array like the table, or [num_rows]; None for a slot it lacks.
  hyper: float32 [len(hyper_names)]; read when an update runs.
  slot_dtype: float32, the type of the tables or, of some rules, bfloat16.
  stochastic_rounding: of rows of 16-bit types.
  stochastic_slots: the same of slots in bfloat16.
  updated_tables: per table, whether it is; all if empty.
  keys: per table, int64 [num_rows], by which its rows' random numbers are drawn; none if empty.)")
      .def(py::init<py::object, const std::string&, const std::vector<std::vector<py::object>>&,
                    py::object, const std::string&, bool, bool, const std::vector<bool>&,
                    const std::vector<py::object>&>(),
           "group"_a, py::kw_only(), "rule"_a, "slots"_a, "hyper"_a, "slot_dtype"_a = "float32",
           "stochastic_rounding"_a = false, "stochastic_slots"_a = false,
           "updated_tables"_a = std::vector<bool>(), "keys"_a = std::vector<py::object>())
      .def("run", &PyUpdate::Run, "stream"_a = 0);
  m.def("overflow", &PyOverflow, "arrays"_a, "dtypes"_a, "result"_a, "allocate"_a = py::none(),
        "num_threads"_a = 1, "stream"_a = 0,
        "Writes 0 to `result`, float32 [1], or NaN where a number of any of the arrays, [n] of "
        "float32, float16 or bfloat16, is infinite or NaN. Waits for the stream.");
  m.attr("hyper_names") = std::vector<std::string>(std::begin(kHyperNames), std::end(kHyperNames));
  m.attr("rules") = PyUpdate::Rules();
}

void BindGrouping(py::module_& m) {
  py::class_<PyFeatureIds>(m, "FeatureIds", "The ids of one feature, as they arrive.");
  m.def("sparse_ids", &SparseIds, "values"_a, "indices"_a, "dense_shape"_a,
        "weights"_a = py::none(), "weight_indices"_a = py::none(),
        "FeatureIds of a SparseTensor: ids [n], int64 indices [n, rank].");
  m.def("ragged_ids", &RaggedIds, "values"_a, "row_splits"_a, "weights"_a = py::none(),
        "weight_row_splits"_a = py::none(),
        "FeatureIds of a RaggedTensor: ids [n], int32 or int64 row_splits [num_samples + 1].");
  m.def("dense_ids", &DenseIds, "values"_a, "weights"_a = py::none(),
        "FeatureIds of a dense matrix: ids [num_samples, ids per sample].");
  py::class_<PyGrouping>(m, "Grouping", R"(Brings the ids of several features into one buffer.

The buffer is float32 [layout["size"]]; row splits are int64 at its start, ids int64 from
layout["ids"], weights float32 from layout["weights"] if weighted.)")
      .def(py::init<const std::vector<PyFeatureIds>&, bool, py::object, int>(), "features"_a,
           py::kw_only(), "weighted"_a = false, "allocate"_a = py::none(), "num_threads"_a = 1)
      .def_property_readonly("layout", &PyGrouping::Layout)
      .def("run", &PyGrouping::Run, "buffer"_a, "stream"_a = 0,
           "Writes the buffer. Bad input raises ValueError on the host; for a GPU call check().")
      .def("check", &PyGrouping::Check, "stream"_a = 0,
           "Waits for the stream and raises ValueError if a run on it met bad input.");
}

void BindServedRows(py::module_& m) {
  py::class_<PyServedRows>(m, "ServedRows",
                           R"(The rows of served tables, as lookups of a server read them.

Args:
  tables: float32 [num_rows, dim] NumPy arrays; their rows are copied.
  format: float32, bfloat16, int8 or fp8: how rows are stored.
  copies_bytes: of a GPU's memory for copies of rows, per table: lookups run there, and rows stay in
    host memory that it reads. None: lookups run on the host.
  resident: lookups run on a GPU that has all rows in its memory.
  allocate: as of Group.)")
      .def(py::init<const std::vector<py::object>&, const std::string&, std::optional<int64_t>,
                    bool, py::object, int>(),
           "tables"_a, py::kw_only(), "format"_a = "float32", "copies_bytes"_a = py::none(),
           "resident"_a = false, "allocate"_a = py::none(), "num_threads"_a = 1)
      .def(
          "lookup", &PyServedRows::Lookup, "ids"_a, py::kw_only(), "num_ids"_a,
          "row_splits"_a = py::none(), "weights"_a = py::none(), "outputs"_a, "table_of_feature"_a,
          "combiners"_a, "stream"_a = 0,
          "Writes the outputs, float32 [num_samples, dim] per feature. ids: int64 [sum of num_ids] "
          "row numbers; on a GPU they are overwritten. num_ids: per feature.")
      .def("write", &PyServedRows::Write, "table"_a, "row"_a, "values"_a,
           "Gives a row that no lookup reads other values.")
      .def("counts", &PyServedRows::Counts, "table"_a,
           "On a GPU: ids that found a copy, rows that were brought and kept, copies and bytes.");
}

void BindDeviceArray(py::module_& m) {
  py::class_<DeviceArray>(m, "DeviceArray", R"(An array in GPU memory, copied from a NumPy array.

What any library's array with __cuda_array_interface__ is to this module, for where there is none.)")
      .def(py::init<py::handle>(), "array"_a)
      .def_property_readonly("__cuda_array_interface__", &DeviceArray::interface)
      .def("numpy", &DeviceArray::ToHost, "Waits for the GPU and copies to a new NumPy array.");
  m.def("num_devices", &NumDevices, "How many GPUs there are; 0 in a build without CUDA.");
}

PYBIND11_MODULE(_core, m) {
  m.doc() = "Group lookups on NumPy and CUDA arrays, without a framework.";
  BindAll(m);
  BindGroup(m);
  BindUpdate(m);
  BindGrouping(m);
  BindDeviceArray(m);
  BindServedRows(m);
  BindHostTable(m);
  BindSaveTable(m);
  BindDeviceTable(m);
  BindDiskStore(m);
  BindExchange(m);
  BindShardedLookups(m);
}

}  // namespace
}  // namespace group_embedding
