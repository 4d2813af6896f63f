#include "python/save_table.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/table_file.h"
#include "core/owner.h"
#include "python/host_table.h"
#include "table/file/restore_table.h"
#include "table/file/save_table.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

py::dict Write(PySnapshot& snapshot, const std::string& path, uint64_t save_id, int32_t part,
               int32_t num_parts, bool changes_only, int64_t step) {
  TableFileHeader header = snapshot.header();
  header.save_id = save_id;
  header.part = part;
  header.num_parts = num_parts;
  header.changes_only = changes_only;
  header.step = step;
  FileSum sum;
  Status status;
  {
    py::gil_scoped_release release;
    status = WriteTable(header, &snapshot.get(), path, LocalFiles(), &sum);
  }
  Require(status);
  return SumDict(sum);
}

py::array KeyOwners(const std::vector<int64_t>& keys, int64_t num_ranks) {
  std::vector<int64_t> owners;
  for (const int64_t key : keys) owners.push_back(OwnerOfKey(key, num_ranks));
  return py::array_t<int64_t>(static_cast<py::ssize_t>(owners.size()), owners.data());
}

}  // namespace

void RestoreFromFiles(EmbeddingTable* table, const std::vector<std::string>& paths, int64_t index,
                      int64_t count) {
  Status status;
  {
    py::gil_scoped_release release;
    RestoreOptions how;
    how.subset = {index, count};
    SavedTable saved;
    saved.paths = paths;
    status = RestoreTable(saved, how, table);
  }
  Require(status);
}

void BindSaveTable(py::module_& m) {
  m.def("write_table", &Write, "snapshot"_a, "path"_a, py::kw_only(), "save_id"_a, "part"_a = 0,
        "num_parts"_a = 1, "changes_only"_a = false, "step"_a = -1,
        "Writes a Snapshot to a file; {bytes, crc} of the file.");
  m.def(
      "restore_table",
      [](PyHostTable& table, const std::vector<std::string>& paths, int64_t index, int64_t count) {
        RestoreFromFiles(&table.get(), paths, index, count);
      },
      "table"_a, "paths"_a, py::kw_only(), "index"_a = 0, "count"_a = 1,
      "Gives a table the keys of rank `index` of `count` of the files of one full save and at "
      "most one save of changes. RuntimeError, and the table unchanged, if one is damaged.");
  m.def("key_owners", &KeyOwners, "keys"_a, "num_ranks"_a,
        "The rank that stores each key of a table that is spread over ranks.");
}

}  // namespace group_embedding
