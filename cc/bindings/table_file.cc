#include "bindings/table_file.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/file_source.h"
#include "table/file/manifest.h"
#include "table/file/verify_table.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

py::dict HeaderDict(const TableFileHeader& header) {
  py::list slots;
  for (const SlotOptions& slot : header.slots) {
    slots.append(py::dict("name"_a = slot.name, "width"_a = slot.width,
                          "dtype"_a = NameOf(slot.dtype), "initial"_a = slot.initial));
  }
  return py::dict("table"_a = header.table, "save_id"_a = header.save_id, "part"_a = header.part,
                  "num_parts"_a = header.num_parts, "changes_only"_a = header.changes_only,
                  "step"_a = header.step, "dim"_a = header.dim, "dtype"_a = NameOf(header.dtype),
                  "key_dtype"_a = NameOf(header.key_type),
                  "initial_rows"_a = header.initial.matrix_rows, "slots"_a = slots);
}

py::dict Verify(const std::string& path, const std::string& table,
                const std::optional<py::dict>& expected, py::object open) {
  TableFileSummary file;
  SavedTable saved;
  if (expected.has_value()) saved = Expected(path, table, *expected);
  const auto source = SourceOf(std::move(open));
  Status status;
  {
    py::gil_scoped_release release;
    status = VerifyTableFile(path, *source, &file);
    if (status.ok()) status = CheckIdentity(saved, 0, file);
  }
  Require(status);
  py::dict result = HeaderDict(file.header);
  result["num_rows"] = file.totals.num_rows;
  result["num_erased"] = file.totals.num_erased;
  result["num_counted"] = file.totals.num_counted;
  result["counter_bytes"] = file.totals.counter_bytes;
  result["bytes"] = file.sum.bytes;
  result["crc"] = file.sum.crc;
  result["id"] = file.sum.id;
  return result;
}

py::array Integers(const std::vector<int64_t>& values) {
  return py::array_t<int64_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

// [rows, width]; 16-bit types as uint16.
py::array Matrix(const std::vector<char>& bytes, DataType dtype, int64_t width) {
  const int64_t rows = static_cast<int64_t>(bytes.size()) / (width * SizeOf(dtype));
  return py::array(py::dtype(dtype == DataType::kFloat32 ? "float32" : "uint16"),
                   std::vector<py::ssize_t>{rows, width}, bytes.data());
}

// Goes through the rows of a file.
class PyTableFile {
 public:
  PyTableFile(const std::string& path, py::object open)
      : source_(SourceOf(std::move(open))), file_(path, *source_) {
    Status status;
    {
      py::gil_scoped_release release;
      status = file_.Open();
    }
    Require(status);
  }

  py::dict Header() const { return HeaderDict(file_.header()); }

  py::dict Next() {
    TableFileBlock block;
    Status status;
    {
      py::gil_scoped_release release;
      do {
        status = file_.Next(&block);
      } while (status.ok() && !block.is_last && !file_.has_encoded() && block.rows.keys.empty() &&
               block.erased.empty());
    }
    Require(status);
    if (file_.has_encoded()) {
      Require(Status("file '" + file_.path() +
                     "': expected rows as trained, got rows quantised for serving"));
    }
    if (block.is_last) throw py::stop_iteration();
    const TableFileHeader& header = file_.header();
    py::list slots;
    for (size_t s = 0; s < block.rows.slots.size(); ++s) {
      slots.append(Matrix(block.rows.slots[s], header.slots[s].dtype, header.slots[s].width));
    }
    return py::dict("keys"_a = Integers(block.rows.keys), "counts"_a = Integers(block.rows.counts),
                    "versions"_a = Integers(block.rows.versions),
                    "values"_a = Matrix(block.rows.values, header.dtype, header.dim),
                    "slots"_a = slots, "erased"_a = Integers(block.erased));
  }

 private:
  const std::unique_ptr<FileSource> source_;
  TableFileReader file_;
};

py::dict DecodeManifest(const py::bytes& bytes, const std::string& table) {
  Manifest manifest;
  Require(Decode(bytes, table, &manifest));
  py::list files;
  for (const SavedFile& file : manifest.files) {
    py::dict entry = SumDict(file.sum);
    entry["suffix"] = file.suffix;
    entry["changes_only"] = file.changes_only;
    files.append(entry);
  }
  return py::dict("table"_a = manifest.table, "step"_a = manifest.step, "files"_a = files);
}

}  // namespace

const char* NameOf(DataType type) {
  static const char* kNames[] = {"float32", "float16", "bfloat16"};
  return kNames[static_cast<int>(type)];
}

py::dict SumDict(const FileSum& sum) {
  return py::dict("bytes"_a = sum.bytes, "crc"_a = sum.crc, "id"_a = sum.id);
}

// An entry of "files" of a decoded manifest, of the table of that name.
SavedTable Expected(const std::string& path, const std::string& table, const py::dict& entry) {
  ExpectedFile file;
  file.changes_only = entry["changes_only"].cast<bool>();
  file.sum.bytes = entry["bytes"].cast<int64_t>();
  file.sum.crc = entry["crc"].cast<uint32_t>();
  file.sum.id = entry["id"].cast<uint64_t>();
  SavedTable saved;
  saved.paths = {path};
  saved.table = table;
  saved.files = {file};
  return saved;
}

void BindTableFile(py::module_& m) {
  m.def("verify_table_file", &Verify, "path"_a, "table"_a = "", "expected"_a = py::none(),
        py::kw_only(), "open"_a = py::none(),
        "Reads a file to its end: what it says of itself. RuntimeError if it is damaged, or not "
        "the one that a manifest names as `expected`, one of its files, of `table`. `open`: a "
        "function that opens a path that is not of this machine's file system.");
  m.def(
      "decode_manifest", &DecodeManifest, "bytes"_a, "table"_a,
      "{table, step, files: [{suffix, changes_only, bytes, crc, id}]} of a table in a checkpoint. "
      "The id of a file of format version 1 is 0.");
  m.def("new_suffix", &NewSuffix, "changes_only"_a = false,
        "The name of a new file of a table, behind the checkpoint's prefix and a dot.");
  py::class_<PyTableFile>(m, "TableFile", py::module_local(),
                          R"(The rows of a file, block by block: {keys, counts, versions, values,
slots, erased}. `open`: as of verify_table_file.)")
      .def(py::init<const std::string&, py::object>(), "path"_a, py::kw_only(),
           "open"_a = py::none())
      .def_property_readonly("header", &PyTableFile::Header)
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &PyTableFile::Next);
}

}  // namespace group_embedding
