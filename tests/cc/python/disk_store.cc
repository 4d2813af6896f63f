#include "python/disk_store.h"

#include <pybind11/numpy.h>

#include <memory>
#include <string>

#include "python/array.h"
#include "table/disk/disk_store.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

using Keys = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
using Records = py::array_t<uint8_t, py::array::c_style>;

char* Bytes(Records& records) { return reinterpret_cast<char*>(records.mutable_data()); }

std::unique_ptr<DiskStore> Open(const std::string& table, const std::string& path,
                                int64_t record_bytes, int64_t memory_bytes) {
  Status status;
  auto store = OpenDiskStore({table, path, record_bytes, memory_bytes}, &status);
  Require(status);
  return store;
}

void Put(DiskStore& store, Keys keys, Records records) {
  const ArrayView view = ViewArray(records, "records", "u1", 2, /*on_gpu=*/false);
  RequireShape(view, {keys.size(), store.record_bytes()});
  Status status;
  {
    py::gil_scoped_release release;
    status = store.Put(keys.data(), keys.size(), static_cast<const char*>(view.data));
  }
  Require(status);
}

py::tuple Get(const DiskStore& store, Keys keys) {
  py::array_t<bool> found(keys.size());
  Records records({keys.size(), static_cast<py::ssize_t>(store.record_bytes())});
  Status status;
  {
    bool* is_there = found.mutable_data();
    char* bytes = Bytes(records);
    py::gil_scoped_release release;
    status = store.Get(keys.data(), keys.size(), is_there, bytes);
  }
  Require(status);
  return py::make_tuple(found, records);
}

py::tuple Next(DiskSnapshot& snapshot, const DiskStore& store, int64_t count) {
  std::vector<int64_t> keys;
  std::vector<char> records;
  Require(snapshot.Next(count, &keys, &records));
  Records bytes({static_cast<py::ssize_t>(keys.size()),
                 static_cast<py::ssize_t>(keys.empty() ? store.record_bytes()
                                                       : records.size() / keys.size())});
  std::memcpy(Bytes(bytes), records.data(), records.size());
  return py::make_tuple(Keys(static_cast<py::ssize_t>(keys.size()), keys.data()), bytes);
}

}  // namespace

void BindDiskStore(py::module_& m) {
  py::class_<DiskSnapshot>(m, "DiskSnapshot", "What a DiskStore held at one instant.")
      .def_property_readonly("num_keys", &DiskSnapshot::num_keys)
      .def("next", &Next, "store"_a, "count"_a, "The next keys and records, by unsigned key.");
  py::class_<DiskStore>(m, "DiskStore", R"(Records by key on disk, for one table.

Args:
  table: its name.
  path: the folder to make the store's own folder in; '' for a temporary one.
  record_bytes: of each record; records are uint8 [n, record_bytes].
  memory_bytes: of records to be written and of blocks read.)")
      .def(py::init(&Open), py::kw_only(), "table"_a = "table", "path"_a = "", "record_bytes"_a,
           "memory_bytes"_a = int64_t{64} << 20)
      .def("put", &Put, "keys"_a, "records"_a, "Keys that are not there, all different.")
      .def("get", &Get, "keys"_a, "Which keys are there, and their records.")
      .def(
          "erase",
          [](DiskStore& store, Keys keys) { Require(store.Erase(keys.data(), keys.size())); },
          "keys"_a, "Keys that are there, all different.")
      .def("clear", [](DiskStore& store) { Require(store.Clear()); })
      .def(
          "extend",
          [](DiskStore& store, py::bytes tail) {
            const std::string bytes = tail;
            store.Extend({bytes.begin(), bytes.end()});
          },
          "tail"_a, "Records are longer from now on; those that are there end with `tail`.")
      .def("snapshot", &DiskStore::TakeSnapshot, py::keep_alive<0, 1>())
      .def_property_readonly("path", &DiskStore::path)
      .def_property_readonly("num_keys", &DiskStore::num_keys)
      .def_property_readonly("disk_bytes", &DiskStore::disk_bytes)
      .def_property_readonly("memory_bytes", &DiskStore::memory_bytes);
}

}  // namespace group_embedding
