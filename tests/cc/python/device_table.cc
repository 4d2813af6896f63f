#include "python/device_table.h"

#if GROUP_EMBEDDING_CUDA

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "core/device_buffer.h"
#include "python/array.h"
#include "python/host_table.h"
#include "python/run.h"
#include "python/save_table.h"
#include "table/device/device_memory.h"
#include "table/device/device_table.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;
using Keys = PyHostTable::Keys;

class PyDeviceTable {
 public:
  // `disk`: null without a disk tier.
  PyDeviceTable(TableOptions options, py::object matrix, const DeviceTierOptions& tiers,
                const DiskTierOptions* disk) {
    const void* values = TakeMatrix(matrix, &options);
    Status status;
    table_ = disk == nullptr
                 ? MakeDeviceTable(options, tiers, values, &status)
                 : MakeDiskTieredDeviceTable(options, tiers.device_bytes, *disk, values, &status);
    Require(status);
  }

  EmbeddingTable& get() { return *table_; }
  const EmbeddingTable& get() const { return *table_; }
  DeviceHash* device() const { return table_->device(); }

  // An array of all rows: the values, or those of a slot.
  struct Array {
    void* data;
    int64_t width;
    DataType dtype;
    int64_t row_bytes() const { return width * SizeOf(dtype); }
  };
  Array ArrayOf(py::object slot) {
    const Table rows = table_->rows();
    if (slot.is_none()) return {const_cast<void*>(rows.rows), rows.dim, table_->options().dtype};
    const auto name = slot.cast<std::string>();
    for (const SlotOptions& present : table_->slots()) {
      if (present.name != name) continue;
      void* array = nullptr;
      Require(table_->Slot(present, &array));
      return {array, present.width, present.dtype};
    }
    throw py::key_error("slot: there is no '" + name + "'");
  }

  // __cuda_array_interface__ of all rows that are there.
  py::dict Interface(py::object slot) {
    const Array array = ArrayOf(std::move(slot));
    py::dict interface;
    interface["shape"] = py::make_tuple(table_->rows().num_rows, array.width);
    interface["typestr"] = array.dtype == DataType::kFloat32 ? "<f4" : "<u2";
    interface["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(array.data), false);
    interface["version"] = 3;
    return interface;
  }

  py::array ToHost(py::object slot) {
    const Array array = ArrayOf(std::move(slot));
    const int64_t num_rows = NumRowsInUse(*device());
    py::array host(py::dtype(array.dtype == DataType::kFloat32 ? "float32" : "uint16"),
                   std::vector<py::ssize_t>{num_rows, array.width});
    Copy(array.data, host.mutable_data(), num_rows * array.row_bytes(), cudaMemcpyDeviceToHost);
    return host;
  }

  // The first rows of the array become those of `values`.
  void FromHost(py::handle values, py::object slot) {
    const Array array = ArrayOf(std::move(slot));
    const ArrayView view = ViewRows(values, "values", array.dtype, 2, /*on_gpu=*/false);
    RequireShape(view, {std::min(view.shape[0], NumRowsInUse(*device())), array.width});
    RequireContiguous(view);
    Copy(view.data, array.data, view.shape[0] * array.row_bytes(), cudaMemcpyHostToDevice);
  }

  // Between the host and rows of either tier.
  static void Copy(const void* from, void* to, int64_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    const StreamBuffer<char> between(bytes, nullptr);
    if (kind == cudaMemcpyHostToDevice) {
      CheckCuda(cudaMemcpy(between.data(), from, bytes, kind), "assign");
      CheckCuda(CopyTieredMemory(between.data(), to, bytes, nullptr), "assign");
      CheckCuda(cudaDeviceSynchronize(), "assign");
    } else {
      CheckCuda(CopyTieredMemory(from, between.data(), bytes, nullptr), "numpy");
      CheckCuda(cudaMemcpy(to, between.data(), bytes, kind), "numpy");
    }
  }

  py::dict Info(Keys rows) const {
    const int64_t num_rows = NumRowsInUse(*device());
    std::vector<RowInfo> infos(num_rows);
    CheckCuda(cudaMemcpy(infos.data(), RowInfos(*device()), num_rows * sizeof(RowInfo),
                         cudaMemcpyDeviceToHost),
              "info");
    Keys keys(rows.size()), counts(rows.size()), versions(rows.size());
    for (py::ssize_t i = 0; i < rows.size(); ++i) {
      const int64_t row = rows.data()[i];
      if (row < 0 || row >= num_rows) throw py::index_error("no such row");
      keys.mutable_data()[i] = infos[row].key;
      counts.mutable_data()[i] = infos[row].count;
      versions.mutable_data()[i] = infos[row].version;
    }
    return py::dict("keys"_a = keys, "counts"_a = counts, "versions"_a = versions);
  }

  Keys Find(Keys keys) const {
    Keys rows(keys.size());
    table_->Find(keys.data(), keys.size(), rows.mutable_data());
    return rows;
  }

  // What a thread does after PrefetchRows.
  bool PrefetchFromDisk() {
    const py::gil_scoped_release release;
    if (!HasRowsToPrefetch(*device())) return false;
    AwaitRowsToPrefetch(*device());
    while (group_embedding::PrefetchFromDisk(device())) {
    }
    return true;
  }

 private:
  std::unique_ptr<EmbeddingTable> table_;
};

// Requests: (table, keys, rows), the latter two int64 CUDA arrays of one length.
// batch: of all of them, or 0.
void LocateRows(const std::vector<py::tuple>& given, bool train, int64_t step, uintptr_t stream,
                int64_t batch) {
  std::vector<DeviceKeysToLocate> requests;
  for (size_t r = 0; r < given.size(); ++r) {
    RequireCount(At("requests", r), 3, given[r].size());
    const ArrayView keys = ViewArray(given[r][1], "keys", "i8", 1, /*on_gpu=*/true);
    const ArrayView rows = ViewArray(given[r][2], "rows", "i8", 1, /*on_gpu=*/true);
    RequireContiguous(keys);
    RequireContiguous(rows);
    RequireShape(rows, keys.shape);
    RequireWritable(rows);
    requests.push_back({given[r][0].cast<PyDeviceTable&>().device(),
                        static_cast<const int64_t*>(keys.data), keys.shape[0],
                        static_cast<int64_t*>(rows.data)});
    requests.back().batch = batch;
  }
  const auto cuda_stream = reinterpret_cast<cudaStream_t>(stream);
  const Access access = train ? Access::kTrain : Access::kRead;
  const int64_t count = static_cast<int64_t>(requests.size());
  Status status;
  {
    py::gil_scoped_release release;
    const StreamBuffer<char> scratch(LocateRowsScratchBytes(requests.data(), count, access),
                                     cuda_stream);
    status = LocateRowsCuda(requests.data(), count, access, step, scratch.data(), cuda_stream);
  }
  Require(status);
}

// Requests: (table, keys).
void PrefetchRows(const std::vector<py::tuple>& given, uintptr_t stream) {
  std::vector<DeviceKeysToLocate> requests;
  for (size_t r = 0; r < given.size(); ++r) {
    RequireCount(At("requests", r), 2, given[r].size());
    const ArrayView keys = ViewArray(given[r][1], "keys", "i8", 1, /*on_gpu=*/true);
    RequireContiguous(keys);
    requests.push_back({given[r][0].cast<PyDeviceTable&>().device(),
                        static_cast<const int64_t*>(keys.data), keys.shape[0], nullptr});
  }
  const auto cuda_stream = reinterpret_cast<cudaStream_t>(stream);
  const int64_t count = static_cast<int64_t>(requests.size());
  Status status;
  {
    py::gil_scoped_release release;
    const StreamBuffer<char> scratch(LocateRowsScratchBytes(requests.data(), count, Access::kRead),
                                     cuda_stream);
    status = PrefetchRowsCuda(requests.data(), count, scratch.data(), cuda_stream);
  }
  Require(status);
}

}  // namespace

void BindDeviceTable(py::module_& m) {
  py::class_<PyDeviceTable> device_table(m, "DeviceTable",
                                         R"(A table in GPU memory whose rows are found by key.

As HostTable, except that the arrays of `locate` are in GPU memory, and that `interface`, `numpy` and
`assign` replace views. If device_bytes is not 0, rows beyond it lie in host memory: those that are cold
by cache_strategy, 'least_recent' or 'least_frequent'. With `disk`, a DiskTier with a cache strategy of
its own, rows beyond max_bytes are on disk.)");
  BindBudget(&device_table);
  device_table
      .def(py::init([](int32_t dim, const std::string& dtype, py::object matrix,
                       const std::string& distribution, float a, float b, uint64_t seed,
                       float no_row_value, const std::string& admission, int64_t min_count,
                       int64_t num_counters, int32_t num_hashes, int32_t counter_bytes,
                       int64_t max_bytes, const std::string& name, int64_t device_bytes,
                       const std::string& cache_strategy, const DiskTierOptions* disk,
                       const Budget* budget, bool keeps_time, double probability) {
             TableOptions options =
                 MakeTableOptions(name, dim, dtype, matrix.is_none() ? distribution : "matrix", a,
                                  b, seed, no_row_value, admission, min_count, num_counters,
                                  num_hashes, counter_bytes, max_bytes);
             if (budget != nullptr) options.budget = *budget;
             options.keeps_time = keeps_time;
             options.admission.probability = probability;
             return std::make_unique<PyDeviceTable>(
                 options, std::move(matrix),
                 DeviceTierOptions{device_bytes, ParseCacheStrategy(cache_strategy)}, disk);
           }),
           py::kw_only(), "dim"_a, "dtype"_a = "float32", "matrix"_a = py::none(),
           "distribution"_a = "constant", "a"_a = 0.0f, "b"_a = 0.0f, "seed"_a = 0,
           "no_row_value"_a = 0.0f, "admission"_a = "all", "min_count"_a = 0, "num_counters"_a = 0,
           "num_hashes"_a = 0, "counter_bytes"_a = 8, "max_bytes"_a = 0, "name"_a = "table",
           "device_bytes"_a = 0, "cache_strategy"_a = "least_frequent", "disk"_a = py::none(),
           "budget"_a = py::none(), "keeps_time"_a = false, "probability"_a = 1.0)
      .def(
          "locate",
          [](py::object self, py::object keys, py::object rows, bool train, int64_t step,
             uintptr_t stream, int64_t batch) {
            LocateRows({py::make_tuple(self, keys, rows)}, train, step, stream, batch);
          },
          "keys"_a, "rows"_a, py::kw_only(), "train"_a = false, "step"_a = -1, "stream"_a = 0,
          "batch"_a = 0,
          "Writes the row numbers of keys, both int64 in GPU memory; with train, keys are counted "
          "and get rows.")
      .def("prefetch_from_disk", &PyDeviceTable::PrefetchFromDisk,
           "Brings rows of the keys of prefetch_rows from disk to memory, without waiting for what "
           "streams were given since; returns whether there was something to do.")
      .def("find", &PyDeviceTable::Find, "keys"_a, "Rows of keys, -1 for those without.")
      .def("interface", &PyDeviceTable::Interface, "slot"_a = py::none(),
           "__cuda_array_interface__ of all rows in place, or of a slot.")
      .def("numpy", &PyDeviceTable::ToHost, "slot"_a = py::none(), "A copy of them.")
      .def("assign", &PyDeviceTable::FromHost, "values"_a, "slot"_a = py::none(),
           "Copies [up to num_rows, dim] values from host memory over them.")
      .def(
          "slot",
          [](PyDeviceTable& table, const std::string& name, bool per_row, const std::string& dtype,
             float initial) {
            void* array = nullptr;
            Require(table.get().Slot({name, per_row ? 1 : table.get().options().dim,
                                      ParseDataType("dtype", dtype), initial},
                                     &array));
          },
          "name"_a, py::kw_only(), "per_row"_a = false, "dtype"_a = "float32", "initial"_a = 0.0f,
          "Makes a slot if there is none.")
      .def("info", &PyDeviceTable::Info, "rows"_a, "{keys, counts, versions} of rows.")
      .def(
          "describe",
          [](PyDeviceTable& table, const Keys& keys) { return DescribeKeys(table.get(), keys); },
          "keys"_a,
          "{tiers, counts, versions} of keys; tier 1 is host memory, 2 disk; -1 without a row.")
      .def(
          "insert",
          [](PyDeviceTable& table, const py::dict& rows) {
            Require(table.get().Insert(KeyedRowsOf(rows, table.get())));
          },
          "rows"_a, "As Snapshot.read gives them.")
      .def(
          "erase",
          [](PyDeviceTable& table, Keys keys) {
            return table.get().Erase(keys.data(), keys.size());
          },
          "keys"_a, "How many there were.")
      .def(
          "evict_old",
          [](PyDeviceTable& table, int64_t steps_to_live, int64_t step) {
            return table.get().Evict({Eviction::Kind::kGlobalStep, steps_to_live, 0}, step);
          },
          "steps_to_live"_a, "step"_a, "Erases keys not trained for longer; how many.")
      .def(
          "evict_small",
          [](PyDeviceTable& table, float l2_weight) {
            return table.get().Evict({Eviction::Kind::kL2Weight, 0, l2_weight}, -1);
          },
          "l2_weight"_a, "Erases keys whose row has a smaller sum of squares / 2; how many.")
      .def("clear", [](PyDeviceTable& table) { table.get().Clear(); })
      .def(
          "reserve",
          [](PyDeviceTable& t, int64_t num_keys) { Require(ReserveKeys(t.device(), num_keys)); },
          "num_keys"_a, "Makes space for so many keys at once.")
      .def("set_admission",
           [](PyDeviceTable& table, const py::dict& state) {
             table.get().SetAdmissionState(AdmissionOf(state));
           })
      .def(
          "snapshot",
          [](PyDeviceTable& table, bool changes_only, py::object evict, int64_t step,
             int64_t follower) {
            return TakeSnapshotOf(&table.get(), changes_only, evict, step, follower);
          },
          "changes_only"_a = false, py::kw_only(), "evict"_a = py::none(), "step"_a = -1,
          "follower"_a = kSaves, py::keep_alive<0, 1>(), "As HostTable.snapshot.")
      .def("before_write", [](PyDeviceTable& table,
                              Keys rows) { table.get().BeforeWrite(rows.data(), rows.size()); })
      .def("begin_batch", [](PyDeviceTable& table) { return table.get().BeginBatch(); })
      .def("end_batch", [](PyDeviceTable& table, int64_t batch) { table.get().EndBatch(batch); })
      .def_property_readonly("first_row", [](PyDeviceTable& t) { return t.get().first_row(); })
      .def_property_readonly("num_rows", [](PyDeviceTable& t) { return NumRowsInUse(*t.device()); })
      .def_property_readonly(
          "first_host_row", [](PyDeviceTable& t) { return t.get().rows().first_host_row; },
          "The first row in host memory; -1: all rows are in GPU memory.")
      .def_property_readonly("num_keys", [](PyDeviceTable& t) { return t.get().num_keys(); })
      .def_property_readonly("memory_bytes",
                             [](PyDeviceTable& t) { return t.get().memory_bytes(); })
      .def_property_readonly("load_factor", [](PyDeviceTable& t) { return t.get().load_factor(); });
  m.def("locate_rows", &LocateRows, "requests"_a, py::kw_only(), "train"_a = false, "step"_a = -1,
        "stream"_a = 0, "batch"_a = 0, "DeviceTable.locate for many (table, keys, rows) at once.");
  m.def("prefetch_rows", &PrefetchRows, "requests"_a, py::kw_only(), "stream"_a = 0,
        "Moves rows of (table, keys) of the next batch to GPU memory, while `stream` goes on. Rows "
        "on disk are left to DeviceTable.prefetch_from_disk.");
  m.def(
      "restore_table",
      [](PyDeviceTable& table, const std::vector<std::string>& paths, int64_t index,
         int64_t count) { RestoreFromFiles(&table.get(), paths, index, count); },
      "table"_a, "paths"_a, py::kw_only(), "index"_a = 0, "count"_a = 1,
      "The same, of a DeviceTable.");
}

}  // namespace group_embedding

#else

namespace group_embedding {

void BindDeviceTable(pybind11::module_&) {}

}  // namespace group_embedding

#endif
