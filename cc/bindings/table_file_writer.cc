#include "bindings/table_file_writer.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/table_file.h"
#include "core/row_format.h"
#include "core/words.h"
#include "table/file/manifest.h"
#include "table/file/rewrite_table.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

// Writes rows that another library has trained, block by block, to the file of a table that has
// neither slots nor a filter.
class PyTableFileWriter {
  using Int64s = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

 public:
  PyTableFileWriter(const std::string& path, const std::string& table, int32_t dim,
                    const std::string& dtype, const std::string& key_dtype, int64_t step)
      : file_(path, LocalFiles()) {
    header_.table = table;
    header_.dim = dim;
    header_.step = step;
    header_.time.last_step = std::max<int64_t>(step, 0) - 1;
    for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
      if (dtype == NameOf(type)) header_.dtype = type;
    }
    if (dtype != NameOf(header_.dtype)) {
      throw py::value_error("expected dtype float32, float16 or bfloat16, got " + dtype);
    }
    header_.key_type = Parse(KeyTypeWords(), key_dtype).value_or(KeyType::kUnknown);
    if (NameOf(header_.key_type) != key_dtype) {
      throw py::value_error(UnknownWord("key_dtype", KeyTypeWords(), key_dtype));
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

}  // namespace

void BindTableFileWriter(py::module_& m) {
  m.def(
      "rewrite_table", &Rewrite, "table"_a, "files"_a, "deltas"_a, "format"_a, "path"_a,
      "Writes the rows of a save, a table's files [{path, changes_only, bytes, crc, id}], changed "
      "by the files of changes `deltas`, to one file without slots and counts; {bytes, crc, id} of "
      "it. `format`: of rows, 'int8', 'fp8' or 'bfloat16', for servers alone; '': as trained.");
  m.def("encode_rows", &EncodeRows, "rows"_a, "dtype"_a, "dim"_a, "format"_a,
        "uint8 [rows, bytes of a row]: rows, the bytes of [rows, dim] of a dtype, in a format that "
        "a server stores them in: 'int8', 'fp8' or 'bfloat16'.");
  m.def("encode_manifest", &EncodeManifest, "table"_a, "step"_a, "suffix"_a, "sum"_a,
        "The manifest of one file, of which TableFileWriter gave `sum`.");
  py::class_<PyTableFileWriter>(m, "TableFileWriter", py::module_local(),
                                R"(Writes a table file block by block, without slots or a filter.
The file gets its name when it is finished.)")
      .def(py::init<const std::string&, const std::string&, int32_t, const std::string&,
                    const std::string&, int64_t>(),
           "path"_a, "table"_a, "dim"_a, "dtype"_a, "key_dtype"_a, "step"_a = -1)
      .def("add_rows", &PyTableFileWriter::AddRows, "keys"_a, "values"_a, "counts"_a, "versions"_a,
           "Adds rows [n, dim], 16-bit types as uint16, with n keys, counts and versions.")
      .def("finish", &PyTableFileWriter::Finish, "Ends the file; {bytes, crc, id} of it.");
}

}  // namespace group_embedding
