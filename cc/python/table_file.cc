#include "python/table_file.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/array.h"
#include "python/file_source.h"
#include "python/host_table.h"
#include "table/file/manifest.h"
#include "table/file/rewrite_table.h"
#include "table/file/save_table.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

const char* NameOf(DataType type) {
  static const char* kNames[] = {"float32", "float16", "bfloat16"};
  return kNames[static_cast<int>(type)];
}

py::dict HeaderDict(const TableFileHeader& header) {
  py::list slots;
  for (const SlotOptions& slot : header.slots) {
    slots.append(py::dict("name"_a = slot.name, "width"_a = slot.width,
                          "dtype"_a = NameOf(slot.dtype), "initial"_a = slot.initial));
  }
  return py::dict("table"_a = header.table, "save_id"_a = header.save_id, "part"_a = header.part,
                  "num_parts"_a = header.num_parts, "changes_only"_a = header.changes_only,
                  "step"_a = header.step, "dim"_a = header.dim, "dtype"_a = NameOf(header.dtype),
                  "initial_rows"_a = header.initial.matrix_rows, "slots"_a = slots);
}

py::dict SumDict(const FileSum& sum) {
  return py::dict("bytes"_a = sum.bytes, "crc"_a = sum.crc, "id"_a = sum.id);
}

py::dict Write(PySnapshot& snapshot, const std::string& path, uint64_t save_id, int32_t part,
               int32_t num_parts, bool changes_only, int64_t step) {
  TableFileHeader header = HeaderOf(snapshot.get().table());
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

// Writes rows that another library has trained, block by block, to the file of a table that has
// neither slots nor a filter.
class PyTableFileWriter {
  using Int64s = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

 public:
  PyTableFileWriter(const std::string& path, const std::string& table, int32_t dim,
                    const std::string& dtype, int64_t step)
      : file_(path, LocalFiles()) {
    header_.table = table;
    header_.dim = dim;
    header_.step = step;
    for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
      if (dtype == NameOf(type)) header_.dtype = type;
    }
    if (dtype != NameOf(header_.dtype)) {
      throw py::value_error("expected dtype float32, float16 or bfloat16, got " + dtype);
    }
    if (dim < 1) throw py::value_error("expected dim 1 or more, got " + std::to_string(dim));
    Require(file_.Open(header_));
  }

  // keys, counts, versions: [rows]; values: [rows, dim], 16-bit types as uint16.
  void AddRows(const Int64s& keys, const py::array& values, const Int64s& counts,
               const Int64s& versions) {
    const py::ssize_t num_rows = keys.size();
    const char kind = header_.dtype == DataType::kFloat32 ? 'f' : 'u';
    if (values.dtype().kind() != kind || values.itemsize() != SizeOf(header_.dtype) ||
        values.ndim() != 2 || values.shape(0) != num_rows || values.shape(1) != header_.dim ||
        !(values.flags() & py::array::c_style) || counts.size() != num_rows ||
        versions.size() != num_rows) {
      throw py::value_error("table '" + header_.table + "': expected " + std::to_string(num_rows) +
                            " counts, versions and rows of dim " + std::to_string(header_.dim));
    }
    KeyedRows rows;
    rows.keys.assign(keys.data(), keys.data() + num_rows);
    rows.counts.assign(counts.data(), counts.data() + num_rows);
    rows.versions.assign(versions.data(), versions.data() + num_rows);
    const char* bytes = static_cast<const char*>(values.data());
    rows.values.assign(bytes, bytes + values.nbytes());
    Status status;
    {
      py::gil_scoped_release release;
      status = file_.AddRows(rows);
    }
    Require(status);
  }

  py::dict Finish() {
    FileSum sum;
    Require(file_.Finish(&sum));
    return SumDict(sum);
  }

 private:
  TableFileHeader header_;
  TableFileWriter file_;
};

py::bytes EncodeManifest(const std::string& table, int64_t step, const std::string& suffix,
                         const py::dict& sum) {
  SavedFile file;
  file.suffix = suffix;
  file.sum = {sum["bytes"].cast<int64_t>(), sum["crc"].cast<uint32_t>(),
              sum["id"].cast<uint64_t>()};
  Manifest manifest;
  manifest.table = table;
  manifest.step = step;
  manifest.files = {file};
  return py::bytes(Encode(manifest));
}

// `files`: of a decoded manifest, with the "path" of each. `format`: a word of RowFormat, or "".
py::dict Rewrite(const std::string& table, const py::list& files,
                 const std::vector<std::string>& deltas, const std::string& format,
                 const std::string& path) {
  SavedTable base;
  base.table = table;
  for (const py::handle& entry : files) {
    const SavedTable one =
        Expected(entry["path"].cast<std::string>(), table, entry.cast<py::dict>());
    base.paths.push_back(one.paths[0]);
    base.files.push_back(one.files[0]);
  }
  if (base.paths.empty()) throw py::value_error("table '" + table + "': expected files, got none");
  const std::optional<RowFormat> word = Parse(RowFormatWords(), format);
  if (!format.empty() && !word.has_value()) throw py::value_error("no format '" + format + "'");
  FileSum sum;
  Status status;
  {
    py::gil_scoped_release release;
    status = RewriteTable(base, deltas, word, path, LocalFiles(), &sum);
  }
  Require(status);
  return SumDict(sum);
}

py::array EncodeRows(const py::bytes& rows, const std::string& dtype, int64_t dim,
                     const std::string& format) {
  const std::optional<DataType> type = Parse(DataTypeWords(), dtype);
  const std::optional<RowFormat> to = Parse(RowFormatWords(), format);
  if (!type.has_value() || !to.has_value() || dim < 1) {
    throw py::value_error("expected a dtype, a format and a dim, got '" + dtype + "', '" + format +
                          "' and " + std::to_string(dim));
  }
  const std::string_view bytes = rows;
  const int64_t from_bytes = dim * SizeOf(*type), to_bytes = RowBytes(*to, dim);
  const int64_t num_rows = static_cast<int64_t>(bytes.size()) / from_bytes;
  py::array_t<uint8_t> encoded({num_rows, to_bytes});
  auto* out = reinterpret_cast<char*>(encoded.mutable_data());
  py::gil_scoped_release release;
  for (int64_t r = 0; r < num_rows; ++r) {
    EncodeRow(*type, bytes.data() + r * from_bytes, dim, *to, out + r * to_bytes);
  }
  return encoded;
}

py::array KeyOwners(const std::vector<int64_t>& keys, int64_t num_ranks) {
  std::vector<int64_t> owners;
  for (const int64_t key : keys) owners.push_back(OwnerOfKey(key, num_ranks));
  return Integers(owners);
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

void BindTableFile(py::module_& m) {
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
  m.def(
      "rewrite_table", &Rewrite, "table"_a, "files"_a, "deltas"_a, "format"_a, "path"_a,
      "Writes the rows of a save, a table's files [{path, changes_only, bytes, crc, id}], changed "
      "by the files of changes `deltas`, to one file without slots and counts; {bytes, crc, id} of "
      "it. `format`: of rows, 'int8', 'fp8' or 'bfloat16', for servers alone; '': as trained.");
  m.def("encode_rows", &EncodeRows, "rows"_a, "dtype"_a, "dim"_a, "format"_a,
        "uint8 [rows, bytes of a row]: rows, the bytes of [rows, dim] of a dtype, in a format that "
        "a server stores them in: 'int8', 'fp8' or 'bfloat16'.");
  m.def("key_owners", &KeyOwners, "keys"_a, "num_ranks"_a,
        "The rank that stores each key of a table that is spread over ranks.");
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
  m.def("encode_manifest", &EncodeManifest, "table"_a, "step"_a, "suffix"_a, "sum"_a,
        "The manifest of one file, of which TableFileWriter gave `sum`.");
  py::class_<PyTableFileWriter>(m, "TableFileWriter",
                                R"(Writes a table file block by block, without slots or a filter.
The file gets its name when it is finished.)")
      .def(py::init<const std::string&, const std::string&, int32_t, const std::string&, int64_t>(),
           "path"_a, "table"_a, "dim"_a, "dtype"_a, "step"_a = -1)
      .def("add_rows", &PyTableFileWriter::AddRows, "keys"_a, "values"_a, "counts"_a, "versions"_a,
           "Adds rows [n, dim], 16-bit types as uint16, with n keys, counts and versions.")
      .def("finish", &PyTableFileWriter::Finish, "Ends the file; {bytes, crc, id} of it.");
  py::class_<PyTableFile>(m, "TableFile",
                          R"(The rows of a file, block by block: {keys, counts, versions, values,
slots, erased}. `open`: as of verify_table_file.)")
      .def(py::init<const std::string&, py::object>(), "path"_a, py::kw_only(),
           "open"_a = py::none())
      .def_property_readonly("header", &PyTableFile::Header)
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &PyTableFile::Next);
}

}  // namespace group_embedding
